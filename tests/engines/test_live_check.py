"""A captured task beside the step itself: what is found, what is not taken for a difference, what is undone."""

import contextlib
import dataclasses
import functools
import os
import random
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn.functional import cross_entropy

import bow
from bow.devices import available_cores
from bow.engines import live_check
from bow.engines.live_check import Expected, LiveCheck
from bow.engines.outcome import ParallelSpeedup
from bow.testing import FakeDevice
from tests.engines.pairs import are_equal, closed_later
from tests.grouped import of_replicas

pytestmark = [pytest.mark.usefixtures("_uncompiled", "_captured_anew")]

REPLAYING = ["graph", "graph@fake", "graph+round@fake", "fused@fake"]
LEARNERS, FEATURES, CLASSES = 2, 6, 3
SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.01)


@pytest.fixture(autouse=True)
def _beta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BETA", "1.0")


def beta() -> float:
    return float(os.environ["BETA"])


def model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, CLASSES)]
    return nn.Sequential(*layers)


def round_of(t: int) -> list[Any]:
    def batch(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(4, FEATURES, generator=generator), torch.randint(CLASSES, (4,), generator=generator)

    return [batch(LEARNERS * t + learner) for learner in range(LEARNERS)]


def training(engine: str, build: Callable[[], nn.Module] = model, **settings: Any) -> bow.Replicas:
    name, _, fake = engine.partition("@")
    settings = {"optimizer": SGD, "learners": LEARNERS, **settings}
    return closed_later(
        bow.Replicas(build(), **of_replicas(engine=name, device=FakeDevice() if fake else "cpu", **settings))
    )


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * beta()


def of_the_loss(learner: nn.Module, given: Any) -> Any:
    return cross_entropy(learner(given[0]), given[1]) * beta()


def of_the_gradient(learner: nn.Module, given: Any) -> Any:
    return cross_entropy(Scale.apply(learner(given[0])), given[1])  # type: ignore[no-untyped-call]


def of_a_metric(learner: nn.Module, given: Any) -> Any:
    loss = cross_entropy(learner(given[0]), given[1])
    return loss, {"beta": loss.detach() * beta()}


def of_a_buffer(learner: nn.Module, given: Any) -> Any:
    learner[1].running_mean.mul_(beta())  # type: ignore[index]
    return cross_entropy(learner(given[0]), given[1])


UNREPLAYED = ("gradient of", "fused@fake")
"""`vmap` refuses functions of the user's own."""

STEPS = {"loss": of_the_loss, "gradient of": of_the_gradient, "beta": of_a_metric, "buffer": of_a_buffer}


@pytest.mark.sample(5)
@pytest.mark.parametrize(("what", "engine"), [case for case in product(STEPS, REPLAYING) if case != UNREPLAYED])
def test_what_cannot_be_watched_ends_the_replay(what: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = training(engine, step=STEPS[what])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(6):
            if t == 3:  # checked are the first, the second, the fourth round, and closely the fifth
                monkeypatch.setenv("BETA", "1.5")
            replicas.round(round_of(t))
    (warning,) = [str(warning.message) for warning in caught if "captured step" in str(warning.message)]
    assert what in warning
    assert "last matched in round 1," in warning
    (event,) = replicas.loop.take_events()
    assert (event.event, event.message) == ("engine changed", warning)
    assert replicas.engine in ("eager", f"{engine.partition('@')[0]} (not captured)")
    eager = training("eager", step=STEPS[what])
    eager.load_training_state(replicas.training_state())
    for t in range(6, 8):
        torch.testing.assert_close(replicas.round(round_of(t)), eager.round(round_of(t)))


def run_rounds(replicas: bow.Replicas, rounds: range) -> None:
    for t in rounds:
        replicas.round(round_of(t))


def drawing_by_the_environment(learner: nn.Module, given: Any) -> Any:
    inputs = nn.functional.dropout(given[0], 0.5) if beta() == 1.0 else given[0]
    return cross_entropy(learner(inputs), given[1])


def not_drawing_by_the_environment(learner: nn.Module, given: Any) -> Any:
    inputs = nn.functional.dropout(given[0], 0.5) if beta() != 1.0 else given[0]
    return cross_entropy(learner(inputs), given[1])


@pytest.mark.parametrize("step", [drawing_by_the_environment, not_drawing_by_the_environment])
def test_random_numbers_that_are_not_drawn_any_more_are_a_difference(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = training("graph", step=step)
    run_rounds(replicas, range(3))
    monkeypatch.setenv("BETA", "1.5")
    with pytest.warns(UserWarning, match="different number of random draws; it last matched in"):
        run_rounds(replicas, range(3, 9))
    assert replicas.engine == "eager"


def test_an_engine_that_was_left_is_not_tried_again_where_a_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would replay what is wrong until the next check."""
    first = training("graph", step=of_the_loss)
    first.round(round_of(0))
    monkeypatch.setenv("BETA", "1.5")
    with pytest.warns(UserWarning, match="captured step"):
        run_rounds(first, range(1, 6))
    second = training("graph", step=of_the_loss)
    with pytest.warns(UserWarning, match="engine graph had been abandoned before the checkpoint .the captured step"):
        second.load_training_state(first.training_state())
    assert second.engine == first.engine == "eager"
    (event,) = second.loop.take_events()
    assert event.round == 6  # and not 0: a report leaves out what an earlier attempt did behind the first round
    third = training("graph", step=of_the_loss)
    with pytest.warns(UserWarning, match="engine graph had been abandoned before the checkpoint .the captured step"):
        third.load_training_state(second.training_state())


def in_place(learner: nn.Module, given: Any) -> Any:
    return cross_entropy(learner(given[0].mul_(3)), given[1])


@pytest.mark.sample(3)
@pytest.mark.parametrize("engine", REPLAYING)
def test_a_step_that_writes_to_its_batch_sees_each_batch_once(engine: str) -> None:
    made = [training(name, step=in_place) for name in (engine, "eager")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what cannot be captured
        for t in range(9):
            losses = [each.round(round_of(t)) for each in made]
            torch.testing.assert_close(*losses)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("engine", "dispatch"),
    [*product(REPLAYING, ["fixed"]), ("graph", "first_come"), ("graph@fake", "first_come")],
)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_a_training_with_checks_is_that_without(
    optimizer: Any, engine: str, dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    def trained(*, checks: bool) -> list[Any]:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        monkeypatch.setattr(LiveCheck, "is_due", lambda self, index: checks and self._captures.num_captures > 0)
        learners = 1 if dispatch == "first_come" else LEARNERS  # several come as they like
        replicas = training(
            engine, functools.partial(model, 0.2), loss=cross_entropy, optimizer=optimizer, learners=learners,
            dispatch=dispatch, seed=7,
        )  # fmt: skip
        torch.manual_seed(1)
        for t in range(0, 9, 3):
            replicas.rounds_at_once([round_of(t + i)[:learners] for i in range(3)])
        replicas.loop.catch_up()
        state = replicas.training_state()
        assert not replicas.loop.take_events()
        replicas.close()
        return [state, replicas.G, torch.random.get_rng_state(), random.getstate(), np.random.get_state()]

    (*tensors, python, numpy), (*others, other_python, other_numpy) = trained(checks=True), trained(checks=False)
    assert are_equal(tensors, others)
    assert python == other_python
    assert str(numpy) == str(other_numpy)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(2, 5, num_layers=2, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.out(self.cell(inputs.view(len(inputs), 3, 2))[0][:, -1])
        return made


class Convolutional(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 8, 2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES),
        )  # fmt: skip


def with_accuracy(learner: nn.Module, given: Any) -> Any:
    made = learner(given[0])
    return cross_entropy(made, given[1]), {"accuracy": (made.argmax(1) == given[1]).float().mean()}


HONEST: dict[str, Callable[[], nn.Module]] = {
    "dropout": functools.partial(model, 0.5),
    "convolution": Convolutional,
    "recurrent": Recurrent,
}


def check_honest(engine: str, name: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> int:
    """Train with a check in every round, and say how many have told something."""
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, index: self._captures.num_captures > 0)
    told = []
    verdict = LiveCheck.compare
    monkeypatch.setattr(
        LiveCheck, "compare", lambda self, *args: told.append(args[1].run is not None) or verdict(self, *args)
    )
    replicas = training(engine, HONEST[name], step=with_accuracy, **settings)
    run_rounds(replicas, range(8))
    assert not replicas.loop.take_events()
    replicas.close()
    return sum(told)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "engine", "precision"),
    [
        *product(["dropout", "convolution"], REPLAYING, [None]),
        *product(["dropout", "convolution"], ["graph", "graph@fake"], ["bfloat16"]),
        ("recurrent", "graph", None),
    ],
)
def test_rounding_and_random_numbers_are_no_difference(
    name: str, engine: str, precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = check_honest(engine, name, monkeypatch, precision=precision)
    if engine in ("graph", "graph@fake") or name != "dropout":  # one graph for all learners draws other numbers
        assert told == 8


def log1p_of_gaps(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy without a sum that begins with 1, to which small numbers are rounded."""
    own = targets.unsqueeze(1)
    return (outputs - outputs.gather(1, own)).exp().scatter(1, own, 0.0).sum(1).log1p().mean()


def confident() -> nn.Module:
    made = nn.Linear(CLASSES, CLASSES)
    with torch.no_grad():
        made.weight.copy_(4.5 * torch.eye(CLASSES))
        made.bias.zero_()
    return made


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_tiny_loss_has_the_rounding_of_what_it_is_computed_from(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured is the same loss by other operators, as compiled code computes it."""
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, index: self._captures.num_captures > 0)

    def step(learner: nn.Module, given: Any) -> Any:
        outputs = learner(given[0])
        is_traced = isinstance(outputs, FakeTensor)
        return log1p_of_gaps(outputs, given[1]) * factor if is_traced else cross_entropy(outputs, given[1])

    replicas = training("graph", confident, step=step)
    with contextlib.nullcontext() if factor == 1 else pytest.warns(UserWarning, match="the loss is"):
        for t in range(6):
            generator = torch.Generator().manual_seed(t)
            targets = torch.randint(CLASSES, (LEARNERS, 16), generator=generator)
            signs = 2.0 * nn.functional.one_hot(targets, CLASSES) - 1
            inputs = signs + 0.02 * torch.randn(signs.shape, generator=generator)
            assert replicas.round(list(zip(inputs, targets, strict=True))).max() < 5e-4
    assert bool(replicas.loop.take_events()) == (factor != 1)


class Masked(nn.Module):
    """Buffers with infinite elements, as masks of attention have, and others that are no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf]))
        self.register_buffer("unset", torch.full((2,), torch.nan))
        self.register_buffer("phases", torch.tensor([1j, 2.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.linear(inputs) + self.mask
        return made


def masked(learner: nn.Module, given: Any) -> Any:
    outputs = learner(given[0])
    return cross_entropy(outputs, given[1] % 2), {"undefined": outputs.new_zeros(()) / 0, "lowest": outputs.min()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", REPLAYING)
def test_what_is_not_finite_is_compared_as_well(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, index: self._captures.num_captures > 0)

    def step(learner: nn.Module, given: Any) -> Any:
        loss, metrics = masked(learner, given)
        return loss, {**metrics, "beta": loss.detach() * 0 + beta()}

    replicas = training(engine, Masked, step=step)
    run_rounds(replicas, range(3))
    assert not replicas.loop.take_events()
    monkeypatch.setenv("BETA", "inf")
    replicas.round(round_of(3))  # from here on it looks closely
    with pytest.warns(UserWarning, match="the step's 'beta' is 1 and not inf"):
        replicas.round(round_of(4))


@pytest.mark.parametrize(("free_s", "last"), [(1e9, 64), (0.0, 8)])
def test_a_short_training_is_checked_whenever_its_rounds_have_doubled(
    free_s: float, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.live_check.SHARE", 1e-9)  # nothing by the clock
    monkeypatch.setattr("bow.engines.live_check.FREE_CHECKS_S", free_s)
    checked = []
    replicas = training("graph", loss=cross_entropy)
    live = replicas.loop.runner.live  # type: ignore[attr-defined]
    verdict = live.compare
    monkeypatch.setattr(live, "compare", lambda *args: checked.append(args[-1] + 1) or verdict(*args))
    for t in range(70):
        replicas.round(round_of(t % 10))
    replicas.close()
    assert checked == [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= last]


@pytest.mark.parametrize(
    ("part", "is_compiled", "by", "unsure"),
    [
        ("gradient", False, 6e-5, True),
        ("gradient", True, 6e-5, False),
        ("gradient", True, 0.01, False),  # some values fell on the other side of a ReLU
        ("gradient", True, 0.2, True),
        ("loss", True, 6e-5, False),
        ("loss", True, 0.01, True),
    ],
)
def test_what_is_compiled_may_sum_in_another_order(part: str, is_compiled: bool, by: float, unsure: bool) -> None:
    replicas = training("graph", loss=cross_entropy)
    live = replicas.loop.runner.live  # type: ignore[attr-defined]
    loss = replicas.round(round_of(0))[0]
    run = live.results_of(0, loss, {}, is_compiled=is_compiled)
    run = dataclasses.replace(run, gradient=torch.ones_like(run.gradient))
    other = dataclasses.replace(run, **{part: getattr(run, part) * (1 + by)})
    live.run_step(0, round_of(0)[0], contextlib.nullcontext)  # begins the clock
    assert live.compare([other], Expected(0, run), 1) is None
    assert live.needs_recheck == unsure


@pytest.mark.nightly
@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("name", HONEST)
def test_rounding_of_compiled_tasks_is_no_difference(
    name: str, precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_honest("graph", name, monkeypatch, precision=precision, compile=True) == 8


@pytest.mark.parametrize("asks", [1, 3])
def test_behind_the_first_rounds_a_hundredth_of_the_time_is_spent(asks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("bow.engines.live_check.time.perf_counter", lambda: now[0])
    checked = []
    replicas = training("graph", loss=cross_entropy)
    live = replicas.loop.runner.live  # type: ignore[attr-defined]
    verdict = live.compare

    def seen(made: Any, expected: Any, index: int) -> Any:
        now[0] += 1  # what a check takes
        checked.append(index)
        return verdict(made, expected, index)

    monkeypatch.setattr(live, "compare", seen)
    for t in range(100):
        now[0] += 20
        for _ in range(asks - 1):
            assert replicas.loop.most_turns >= 0  # as those do who pass several rounds at once
        replicas.round(round_of(t % 10))
    assert checked[:4] == [0, 1, 3, 7]
    assert len(checked) <= 0.01 * now[0] + 1
    assert len(checked) > 0.01 * now[0] - 2
    now[0] += 10**6  # a pause pays for one check at most
    for t in range(50):
        replicas.round(round_of(t % 10))
    assert len(checked) <= 0.01 * 2050 + 3


def test_a_task_that_is_checked_tells_what_learners_bring_that_run_at_the_same_time() -> None:
    replicas = training("graph", loss=cross_entropy)
    run_rounds(replicas, range(8))
    found = replicas.loop.context.log.parallel_speedup
    replicas.close()
    assert (found.learners, found.at_once) == (LEARNERS, min(LEARNERS, len(available_cores())))
    assert len(found.times) == 4  # of rounds 1, 2, 4 and 8
    assert min(map(min, found.times)) > 0


@pytest.mark.parametrize(("engine", "learners"), [("graph", 1), ("eager", LEARNERS)])
def test_nothing_is_said_of_learners_that_run_one_after_another(engine: str, learners: int) -> None:
    replicas = training(engine, loss=cross_entropy, learners=learners)
    for t in range(2):
        replicas.round(round_of(t)[:learners])
    replicas.close()
    assert replicas.loop.context.log.parallel_speedup is None


def test_what_was_measured_of_learners_side_by_side_is_said_as_it_was_measured() -> None:
    found = ParallelSpeedup(4, 2, [(0.9, 0.1), (0.0074, 0.0152), (0.0070, 0.0155)])
    assert str(found) == (
        "4 learners, 2 side by side: 1.9 times the throughput of one on a core (a round 15.5 ms, one task alone 7.4 ms)"
    )


@pytest.mark.sample(5)
@pytest.mark.parametrize(("what", "engine"), [case for case in product(STEPS, REPLAYING) if case != UNREPLAYED])
def test_a_change_behind_the_last_check_is_told_at_the_end(
    what: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveCheck, "is_due", of_rounds(0, 1))
    replicas = training(engine, step=STEPS[what])
    run_rounds(replicas, range(3))
    monkeypatch.setenv("BETA", "1.5")
    run_rounds(replicas, range(3, 6))
    before = state_of(replicas)
    with pytest.warns(UserWarning, match=f"{what}.*last matched in round 1,") as caught:
        replicas.export()
    assert len(caught) == 1
    assert [event.event for event in replicas.loop.take_events()] == ["engine changed"]
    assert are_equal(before, state_of(replicas))
    replicas.export()  # says it once
    run_rounds(replicas, range(6, 7))


@pytest.mark.sample(5)
@pytest.mark.parametrize("engine", REPLAYING)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("sync", [bow.SMA(alpha=0.1), bow.SMA(alpha=0.1, every=2)], ids=["every", "second"])
def test_the_last_check_leaves_nothing(sync: Any, optimizer: Any, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*, checks: bool) -> list[Any]:
        monkeypatch.setattr(LiveCheck, "is_due", of_rounds(*range(2 * checks)))
        torch.manual_seed(1)
        build = functools.partial(model, 0.2)
        replicas = training(engine, build, loss=cross_entropy, optimizer=optimizer, sync=sync, seed=7)
        for t in range(7):
            replicas.round(round_of(t))
            if checks:
                replicas.loop.check_last()
        assert not replicas.loop.take_events()
        state = state_of(replicas)
        replicas.close()
        return state

    assert are_equal(trained(checks=True), trained(checks=False))


def of_rounds(*checked: int) -> Callable[[LiveCheck, int], bool]:
    """`is_due` that looks at these rounds alone."""
    is_due = LiveCheck.is_due
    return lambda self, index: is_due(self, index) and index in checked


def state_of(replicas: bow.Replicas) -> list[Any]:
    replicas.loop.catch_up()
    return [replicas.training_state(), replicas.G.clone(), torch.random.get_rng_state(), replicas.engine]


@pytest.mark.parametrize(
    "times",
    [
        [(0.9, 0.1), (0.0190, 0.0152), (0.0200, 0.0155), (0.0195, 0.0154)],  # 5.1 times
        [(0.9, 0.1), (0.0070, 0.0152), (0.0070, 0.0400), (0.0070, 0.0155), (0.0140, 0.0500)],
    ],
    ids=["more than is possible", "too wide"],
)
def test_what_a_busy_machine_makes_of_learners_side_by_side_is_not_said(times: list[tuple[float, float]]) -> None:
    assert str(ParallelSpeedup(4, 2, times)) == (
        "4 learners, 2 side by side: the gain could not be measured, because the machine was busy"
    )


def test_the_last_check_ends_where_nothing_is_captured(tmp_path: Path) -> None:
    """A value changes in front of the last round, whose short batch is not captured anew."""
    scale = {"by": 1.0}

    class Changing(bow.Callback):
        def on_round_end(self, run: Any) -> None:
            if run.round == 20:
                scale["by"] = 0.5

    def step(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]) * scale["by"], batch[1])

    data = torch.randn(322, 8), torch.randn(322, 1)
    run = bow.Run(tmp_path / "run", progress=False)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    result = bow.train(
        model, data, step=step, batch_size=8, learners=2, engine="graph", callbacks=[Changing()], run=run
    )
    assert result.history[-1]["round"] == 21


@pytest.mark.parametrize("engine", ["graph", "graph@fake"])
def test_a_last_round_that_was_checked_is_not_checked_again(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    run_step = LiveCheck.run_step
    monkeypatch.setattr(LiveCheck, "run_step", lambda self, *given: checked.append(given) or run_step(self, *given))
    replicas = training(engine, loss=cross_entropy)
    replicas.round(round_of(0))
    replicas.loop.check_last()
    assert len(checked) == 1


def test_learners_that_are_added_behind_the_last_round_are_not_checked() -> None:
    replicas = training("graph", loss=cross_entropy)
    replicas.round(round_of(0))
    replicas.resize(len(round_of(0)) + 1)
    replicas.export()


def test_pauses_between_rounds_are_no_time_that_allows_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0

    def perf_counter() -> float:
        nonlocal seconds
        seconds += 0.01
        return seconds

    monkeypatch.setattr(live_check, "time", SimpleNamespace(perf_counter=perf_counter))
    monkeypatch.setattr(live_check, "FREE_CHECKS_S", 0.0)
    replicas = training("graph", loss=cross_entropy)
    live = replicas.loop.runner.live  # type: ignore[attr-defined]

    def checks_in(rounds: int, pause_s: float = 0.0, every: int = 1) -> int:
        nonlocal seconds
        before = live._num_checks
        for index in range(rounds):
            seconds += pause_s if index % every == 0 else 0.0
            replicas.round(round_of(0))
        return int(live._num_checks - before)

    assert checks_in(8) == 4  # in rounds 1, 2, 4 and 8
    assert checks_in(40, pause_s=10.0, every=4) == 0
    assert checks_in(10, pause_s=1.0) > 0  # no pause: rounds take so long
