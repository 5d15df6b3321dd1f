"""What the engines on devices with streams do beyond following `eager` round by round."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.data import Indexed, batch_of, open_stream
from bow.engines.cuda.transfers import SLOTS
from bow.engines.live_check import LiveCheck
from bow.errors import DivergenceError, LossError
from bow.testing import FakeDevice
from tests.engines.cuda.trainings import ADAMW, ENGINES, LEARNERS, SGD, Scaled, beside_eager, model, round_of, training
from tests.engines.pairs import assert_alike, batch

pytestmark = [pytest.mark.usefixtures("_uncompiled")]

AHEAD = ["graph", "streams"]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def bad(batches: list[Any], learner: int) -> list[Any]:
    batches[learner][0][0, 0] = torch.inf
    return batches


def state_of(replicas: Any) -> list[Tensor]:
    return [replicas.W.clone(), replicas.z.clone(), *replicas.central.buffers()]


@pytest.mark.sample(3)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_together_are_the_rounds_one_by_one(engine: str, optimizer: Any) -> None:
    states, losses = [], []
    for together in (1, 4):
        replicas = training(engine, FakeDevice(), optimizer=optimizer)
        made = [
            outcome.losses
            for t in range(0, 12, together)
            for outcome in replicas.rounds_at_once([round_of(t + i) for i in range(together)])
        ]
        states.append(state_of(replicas))
        losses.append(torch.stack(made))
        replicas.close()
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(*losses)


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_of_one_call_have_no_barrier_between_them(
    engine: str, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, round_index: False)  # for which the host waits
    replicas = training(engine, device)
    replicas.round(round_of(0))
    before = Counter({wait: count for wait, count in device.waits.items() if wait.waiting == "caller"})
    replicas.rounds_at_once([round_of(t) for t in range(1, 5)])
    after = Counter({wait: count for wait, count in device.waits.items() if wait.waiting == "caller"})
    assert (after - before).total() == 2  # for the call before, and for this one


@pytest.mark.sample(2, 1)
@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_is_repeated_and_differs_between_learners(engine: str) -> None:
    seen = []
    for seed in (0, 0, 1):
        replicas = training(engine, FakeDevice(), functools.partial(model, dropout=0.5), seed=seed)
        same = batch(3)
        losses = [replicas.round([same, same]) for _ in range(3)]
        seen.append(torch.stack(losses))
        replicas.close()
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert (seen[0][0, 0] - seen[0][0, 1]).abs() > 1e-6  # learners start equal and see the same batch
    assert not torch.equal(seen[0][0], seen[0][1])


@pytest.mark.parametrize("engine", AHEAD)
def test_dropout_is_that_of_eager_where_the_generator_is(engine: str) -> None:
    trainings = beside_eager(engine, functools.partial(model, dropout=0.5))
    for t in range(3):
        one, other = (replicas.round(round_of(t)) for replicas in trainings)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


class Warming(nn.Sequential):
    """Reads how many batches its norm has seen, behind it."""

    assigns = False

    def forward(self, x: Tensor) -> Tensor:
        y, seen = super().forward(x), self[1].num_batches_tracked
        if self.assigns:
            self[1].num_batches_tracked = seen * 2
        return y * (seen / (seen + 3)) + (seen > 2)


@pytest.mark.parametrize("assigns", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_counts_of_batches_can_be_read_by_the_step(engine: str, assigns: bool) -> None:
    def build() -> nn.Module:
        made = Warming(*model())
        made.assigns = assigns
        return made

    trainings = beside_eager(engine, build)
    for t in range(5):
        one, other = (replicas.round(round_of(t)) for replicas in trainings)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert trainings[1].engine == engine
    assert {int(each.learner(1)[1].num_batches_tracked) for each in trainings} == {62 if assigns else 5}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_callers_random_numbers_are_left_alone(engine: str, device: FakeDevice) -> None:
    replicas = training(engine, device, functools.partial(model, dropout=0.5))
    before = torch.default_generator.get_state()
    for t in range(3):
        replicas.round(round_of(t))
    assert torch.equal(torch.default_generator.get_state(), before)


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore:.*restarts from the central model")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_diverged_learner_starts_again_at_once_with_sgd_and_sma(engine: str) -> None:
    def build() -> nn.Module:  # without buffers: they are put right when the host hears of it
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    trainings = beside_eager(engine, build)
    for t in range(10):
        for replicas in trainings:
            replicas.round(bad(round_of(t), t % 2) if t in (2, 5) else round_of(t))
        assert_alike(*trainings, 1e-12)
    trainings[1].close()
    assert [replicas.loop.num_restarts for replicas in trainings] == [2, 2]
    assert [event.round for event in trainings[1].loop.take_events()] == [
        event.round for event in trainings[0].loop.take_events()
    ]


@pytest.mark.sample(5)
@pytest.mark.filterwarnings("ignore:.*restarts from the central model", "ignore:.*is excluded from the mean")
@pytest.mark.parametrize("settings", [{"optimizer": ADAMW}, {"sync": bow.SSGD()}, {}], ids=["adamw", "ssgd", "buffers"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_diverged_learner_goes_on_finite_and_always_alike(engine: str, settings: dict[str, Any]) -> None:
    states = []
    for _ in range(2):
        replicas = training(engine, FakeDevice(), **settings)
        for t in range(12):
            replicas.round(bad(round_of(t), 1) if t == 3 else round_of(t))
            assert replicas.W.isfinite().all()
            assert replicas.z.isfinite().all()
        replicas.close()
        assert replicas.loop.num_restarts == 1
        assert all(tensor.isfinite().all() for tensor in replicas.learner(1).buffers())
        states.append(state_of(replicas))
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_divergence_can_be_an_error(engine: str, device: FakeDevice) -> None:
    replicas = training(engine, device, on_nan="error")
    rounds = [bad(round_of(t), 1) if t == 2 else round_of(t) for t in range(3 + SLOTS)]
    with pytest.raises(DivergenceError, match=r"learner 1's loss was .* in round 2"):
        replicas.rounds_at_once(rounds)


@pytest.mark.sample(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_learners_come_and_go_and_memory_comes_back(engine: str, device: FakeDevice) -> None:
    replicas = training(engine, device)
    used = []
    for turn in range(3):
        for k in (2, 3, 4, 3):
            replicas.resize(k)
            for t in range(2):
                replicas.round(round_of(10 * turn + t, k))
        replicas.close()
        used.append(device.used_bytes())
    assert used[2] <= used[1]


@pytest.mark.sample(2, 1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_value_in_python_that_changes_is_captured_anew(engine: str) -> None:
    trainings = beside_eager(engine, lambda: Scaled().double())
    for t in range(6):
        for replicas in trainings:
            for index in range(LEARNERS):
                replicas.learner(index).scale = 1.0 + t // 2
            replicas.round(round_of(t))
        assert_alike(*trainings, 1e-12)


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "streams"])
def test_a_model_that_reads_values_runs_uncaptured(engine: str) -> None:
    class Reading(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            made = super().forward(inputs)
            return made * 2 if made.sum().item() > 0 else made

    trainings = beside_eager(engine, lambda: Reading(6, 3).double())
    one = trainings[0].round(round_of(0))
    with pytest.warns(UserWarning, match="cannot capture this model"):
        other = trainings[1].round(round_of(0))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for t in range(1, 4):
        one, other = (replicas.round(round_of(t)) for replicas in trainings)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert trainings[1].engine == f"{engine} (not captured)"
    assert [event.event for event in trainings[1].loop.take_events()][-1] == "engine changed"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mistake_in_the_step_is_the_users(engine: str, device: FakeDevice) -> None:
    replicas = training(engine, device, step=lambda m, b: m(b[0]))
    with pytest.raises(LossError, match="scalar"):
        replicas.round(round_of(0))


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_metrics_of_the_step_are_there(engine: str) -> None:
    def step(learner: nn.Module, given: Any) -> Any:
        made = learner(given[0])
        return nn.functional.cross_entropy(made, given[1]), {"largest": made.max(), "smallest": made.min()}

    trainings = beside_eager(engine, step=step)
    for t in range(3):
        for replicas in trainings:
            replicas.round(round_of(t))
        one, other = (replicas.last.metrics for replicas in trainings)
        assert list(other) == ["largest", "smallest"]
        for name in one:
            torch.testing.assert_close(one[name], other[name])


@pytest.mark.sample(2, 1)
@pytest.mark.parametrize("engine", ENGINES)
def test_it_goes_on_exactly_from_a_state(engine: str) -> None:
    whole = training(engine, FakeDevice())
    for t in range(8):
        if t == 5:
            state = whole.training_state()
        whole.round(round_of(t))
    resumed = training(engine, FakeDevice())
    resumed.round(round_of(99))
    resumed.load_training_state(state)
    for t in range(5, 8):
        resumed.round(round_of(t))
    assert torch.equal(whole.W, resumed.W)
    assert torch.equal(whole.z, resumed.z)


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", AHEAD)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_learners_that_take_batches_as_they_come_take_each_once(
    engine: str, optimizer: Any, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, round_index: False)  # such a round has the fixed order
    seen: list[float] = []

    def step(learner: nn.Module, given: Any) -> Any:
        return nn.functional.cross_entropy(learner(given[0]), given[1]), {"sum": given[0].sum()}

    settings = {"sync": bow.LocalSGD(every=4), "dispatch": "first_come"}
    replicas = training(engine, device, step=step, optimizer=optimizer, learners=3, **settings)
    rounds = [round_of(t, 3) for t in range(12)]
    outcomes = [outcome for t in range(0, 12, 4) for outcome in replicas.rounds_at_once(rounds[t : t + 4])]
    for outcome in outcomes:
        seen += outcome.metrics["sum"].tolist()
        assert outcome.losses.isfinite().all()
    expected = [float(each[0].sum()) for given in rounds for each in given]
    assert sorted(seen) == pytest.approx(sorted(expected), abs=1e-5)
    assert [outcome.taken_by is None for outcome in outcomes] == [False, False, False, True] * 3


@pytest.mark.parametrize("engine", ["graph+round", "fused"])
def test_learners_that_keep_step_say_that_first_come_has_no_effect(engine: str, device: FakeDevice) -> None:
    with pytest.warns(UserWarning, match="has no effect"):
        training(engine, device, dispatch="first_come").close()


def test_the_averaging_hides_behind_the_learning_tasks(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, round_index: False)  # in which a learner comes first
    replicas = training("graph", device)
    for t in range(3):
        replicas.round(round_of(t))
    known: list[dict[str, int]] = []
    see = device.log.tick

    def noting(actor: str, what: str, reads: Any, writes: Any) -> None:
        see(actor, what, reads, writes)
        if actor == "synchronisation":
            known.append(dict(device.log.clock(actor)))

    device.log.tick = noting  # type: ignore[method-assign]
    before = {actor: clock[actor] for actor, clock in device.log.clocks.items() if actor.startswith("learner")}
    replicas.round(round_of(3))
    replicas.close()
    # What is computed from before the step waits for nothing that learners do in this round.
    assert before
    assert all(known[0].get(actor, 0) <= time for actor, time in before.items())
    assert any(known[-1].get(actor, 0) > time for actor, time in before.items())


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_data_that_reside_on_the_device_are_gathered_there(engine: str, device: FakeDevice) -> None:
    data = batch(0, samples=26)
    trainings = [training(engine, FakeDevice()), training(engine, device)]
    streams = [open_stream(data, batch_size=4, epochs=3) for _ in trainings]
    assert streams[1].reside(torch.device("cpu"), room_bytes=0)  # they are there already
    while (deal := streams[0].deal(LEARNERS)) is not None:
        other = streams[1].deal(LEARNERS)
        assert isinstance(batch_of(other.batches, 0), Indexed)
        losses = [
            replicas.rounds_at_once([each.batches])[0].losses
            for replicas, each in zip(trainings, (deal, other), strict=True)
        ]
        torch.testing.assert_close(*losses, equal_nan=True)
    assert torch.equal(trainings[0].W, trainings[1].W)


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_training_goes_on_behind_an_error_in_the_middle_of_a_round(engine: str, device: FakeDevice) -> None:
    def step(learner: nn.Module, given: Any) -> Tensor:
        if len(given[0]) == 3:
            raise ValueError("three samples are a mistake")
        return nn.functional.cross_entropy(learner(given[0]), given[1])

    replicas = training(engine, device, step=step)
    for t in range(3):
        replicas.round(round_of(t))
    for _ in range(3):  # the first learner has begun when the second one fails
        with pytest.raises(ValueError, match="are a mistake"):
            replicas.round([batch(0), batch(1, 3)])
    for t in range(3, 9):
        assert replicas.round(round_of(t)).isfinite().all()


@pytest.mark.sample(2)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_streams_offload_what_backward_needs(optimizer: Any, device: FakeDevice) -> None:
    def build() -> nn.Module:
        norm = nn.BatchNorm1d(600)
        layers = nn.Sequential(nn.Linear(6, 600), nn.Tanh(), nn.Linear(600, 600), norm, nn.Tanh(), nn.Linear(600, 3))
        return layers.double()

    def round_of_many(t: int) -> list[Any]:
        return [batch(10 * t + j, 400) for j in range(LEARNERS)]

    plain = training("streams", FakeDevice(), build, optimizer=optimizer)
    offloaded = training("streams", device, build, optimizer=optimizer, offload=True)
    for t in range(3):
        for replicas in (plain, offloaded):
            replicas.round(round_of_many(t))
    assert torch.equal(plain.W, offloaded.W)
    assert any("offload" in name or "host" in name for name in device.launches if "learner" in name), device.launches


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:.*restarts from the central model")
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("engine", ENGINES)
def test_two_learners_that_diverge_soon_after_each_other_do_not_infect_each_other(
    engine: str, optimizer: Any, device: FakeDevice
) -> None:
    replicas = training(engine, device, optimizer=optimizer, learners=3)
    for t in range(20):
        given = round_of(t, 3)
        replicas.round(bad(given, 0) if t == 3 else bad(given, 1) if t == 5 else given)
    assert replicas.loop.num_restarts == 2
    for index in range(3):
        assert all(tensor.isfinite().all() for tensor in replicas.learner(index).buffers())
    assert replicas(batch(0)[0]).isfinite().all()


@pytest.mark.sample(2, 1)
@pytest.mark.filterwarnings("ignore:.*restarts from the central model")
@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_are_not_finite_count_once(engine: str, device: FakeDevice) -> None:
    replicas = training(engine, device, optimizer=ADAMW, sync=bow.Independent())
    for t in range(24):
        if t == 3:
            replicas.W[0].fill_(torch.nan)
        replicas.round(round_of(t))
    assert replicas.loop.num_restarts == 1
    assert replicas.W.isfinite().all()


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_loading_the_central_model_reaches_the_graphs(engine: str) -> None:
    trainings = beside_eager(engine)
    for t in range(8):
        for replicas in trainings:
            if t == 4:
                replicas.load_state_dict(model().state_dict())
            replicas.round(round_of(t))
        assert_alike(*trainings, 1e-12)


@pytest.mark.filterwarnings("ignore:.*is excluded from the mean")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_mean_of_gradients_leaves_out_who_diverged(engine: str) -> None:
    trainings = beside_eager(engine, lambda: nn.Linear(6, 3).double(), sync=bow.SSGD())
    for t in range(4):
        for replicas in trainings:
            replicas.round(bad(round_of(t), 1) if t == 2 else round_of(t))
        assert_alike(*trainings, 1e-12)


@pytest.mark.sample(3)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_learning_task_that_fails_leaves_all_weights_as_they_were(
    engine: str, optimizer: Any, device: FakeDevice
) -> None:
    def step(learner: nn.Module, given: Any) -> Tensor:
        if len(given[0]) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return nn.functional.cross_entropy(learner(given[0]), given[1])

    replicas = training(engine, device, step=step, optimizer=optimizer)
    for t in range(3):
        replicas.round(round_of(t))
    before = replicas.W.clone(), replicas.z.clone()
    with pytest.raises(bow.BowError, match="memory"):
        replicas.round([batch(0), batch(1, 3)])
    assert torch.equal(replicas.W, before[0])
    assert torch.equal(replicas.z, before[1])


@pytest.mark.parametrize("engine", AHEAD)
def test_a_batch_that_is_not_there_has_no_loss(engine: str, device: FakeDevice) -> None:
    replicas = training(engine, device, sync=bow.LocalSGD(every=50), dispatch="first_come")
    outcomes = replicas.rounds_at_once([round_of(0), [batch(1), None]])
    assert outcomes[1].losses.isnan().tolist() == [False, True]


@pytest.mark.parametrize("engine", ENGINES)
def test_other_metrics_than_at_first_are_refused(engine: str, device: FakeDevice) -> None:
    def step(learner: nn.Module, given: Any) -> Any:
        made = learner(given[0])
        return nn.functional.cross_entropy(made, given[1]), {"three" if len(given[0]) == 3 else "four": made.max()}

    replicas = training(engine, device, step=step)
    replicas.round(round_of(0))
    with pytest.raises(LossError, match="returns metrics three and returned four before"):
        replicas.round([batch(0, 3), batch(1, 3)])


def test_streams_know_by_shape_whether_tasks_draw() -> None:
    class Sometimes(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            made = super().forward(inputs)
            return nn.functional.dropout(made) if len(inputs) == 4 else made

    seen = []
    for _ in range(2):
        replicas = training("streams", FakeDevice(), lambda: Sometimes(6, 3).double())
        losses = [replicas.round([batch(t, 3 + t % 2), batch(50 + t, 3 + t % 2)]) for t in range(6)]
        seen.append(torch.stack(losses))
        replicas.close()
    assert torch.equal(*seen)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_that_counts_in_python_runs_as_it_is_written(engine: str) -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(inputs) / self.calls

    trainings = beside_eager(engine, lambda: Counting().double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # graphs refuse it, which is said
        for t in range(5):
            for replicas in trainings:
                replicas.round(round_of(t))
            assert_alike(*trainings, 1e-12)


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_optimizers_step_many_tensors_at_once_as_they_do_on_gpus(engine: str) -> None:
    trainings = beside_eager(engine, optimizer=functools.partial(torch.optim.AdamW, lr=0.01, foreach=True))
    for t in range(4):
        for replicas in trainings:
            replicas.round(round_of(t))
        assert_alike(*trainings, 1e-9)


@pytest.mark.sample(2, 1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_learner_that_cannot_be_added_leaves_the_others(
    engine: str, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = training(engine, device)
    replicas.round(round_of(0))
    make = device._make_stream

    def none_left(name: str, high_priority: bool) -> Any:
        if name == "learner 2":
            raise bow.BowError("there are no more streams")
        return make(name, high_priority)

    monkeypatch.setattr(device, "_make_stream", none_left)
    with pytest.raises(bow.BowError, match="no more streams"):
        replicas.resize(replicas.learners + 1)
    assert replicas.learners == 2
    assert replicas.round(round_of(1)).isfinite().all()


@pytest.mark.parametrize("engine", ["graph", "graph+round"])
def test_a_mistake_in_one_batch_does_not_end_capturing(engine: str, device: FakeDevice) -> None:
    def step(learner: nn.Module, given: Any) -> Tensor:
        if len(given[0]) == 3:
            raise KeyError("oops")
        return nn.functional.cross_entropy(learner(given[0]), given[1])

    replicas = training(engine, device, step=step)
    for t in range(2):
        replicas.round(round_of(t))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            with pytest.raises(KeyError, match="oops"):
                replicas.round([batch(0, 3), batch(1, 3)])
    for t in range(4):
        replicas.round([batch(t, 5), batch(10 + t, 5)])
    before = device.replays
    replicas.round([batch(0, 5), batch(1, 5)])
    assert device.replays > before
    assert replicas.engine == engine
