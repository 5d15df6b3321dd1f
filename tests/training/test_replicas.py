from __future__ import annotations

import copy
import functools
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.errors import CheckpointError, DataError, ModelError, SettingError
from tests.grouped import of_replicas

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)

Pair = tuple[Tensor, Tensor]


def replicas(learners: Any = 2, model: nn.Module | None = None, **settings: Any) -> bow.Replicas:
    torch.manual_seed(0)
    model = model or net()
    return bow.Replicas(
        model,
        cross_entropy,
        **of_replicas(**{"optimizer": SGD, "learners": learners, "engine": "eager", "device": "cpu", **settings}),
    )


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


def batch(seed: int, size: int = 5) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def stream(start: int = 0) -> Iterator[Pair]:
    return (batch(seed) for seed in range(start, start + 1000))


def test_the_state_dict_is_the_plain_models() -> None:
    trained = replicas()
    trained.run(stream(), 5)
    plain = net()
    plain.load_state_dict(trained.state_dict())
    inputs = batch(99)[0]
    assert torch.equal(plain.eval()(inputs), trained(inputs))
    assert [p.shape for p in trained.parameters()] == [p.shape for p in plain.parameters()]
    assert list(trained.named_children()) == [("central", trained.central)]


def test_a_plain_models_state_restarts_every_learner() -> None:
    trained, plain = replicas(), net()
    plain[1].running_mean.fill_(0.5)
    trained.run(stream(), 5)
    trained.load_state_dict(plain.state_dict())
    for module in (trained.learner(0), trained.learner(1), trained.central):
        for name, value in plain.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name
    before = trained.z.clone()
    trained.round([None, None])
    assert torch.equal(trained.z, before), "averaging starts at rest, without the earlier momentum of z"


class Scaled(nn.Linear):
    """Has its scale as extra state."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x)

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


def test_extra_state_that_is_loaded_is_every_learners() -> None:
    trained, plain = replicas(model=Scaled(6, 3)), Scaled(6, 3)
    plain.scale = 3.0
    trained.load_state_dict(plain.state_dict())
    trained.resize(3)
    assert [trained.learner(index).scale for index in range(3)] == [3.0] * 3
    assert trained.central.scale == trained.export().scale == 3.0


@pytest.mark.parametrize(
    "move", [lambda r: r.to("cpu"), lambda r: r.half(), lambda r: r.double(), lambda r: nn.ModuleList([r]).float()]
)
def test_moving_and_casting_are_refused_with_the_remedy(move: Any) -> None:
    trained = replicas()
    with pytest.raises(ModelError, match=r"cannot be moved or cast .*convert the model before and pass device="):
        move(trained)
    trained.round([batch(0), batch(1)])


def test_learners_are_trained_on_their_own_batches_in_order() -> None:
    trained = replicas(3, sync=bow.Independent())
    for index in range(3):
        batches: list[Any] = [None] * 3
        batches[index] = batch(index)
        before = trained.W.clone()
        losses = trained.round(batches)
        assert losses.isfinite().nonzero().flatten().tolist() == [index]
        changed = (before != trained.W).any(1)
        assert changed.nonzero().flatten().tolist() == [index]


def test_a_list_and_stacked_tensors_are_the_same_round() -> None:
    listed, stacked = replicas(), replicas()
    for seed in range(0, 8, 2):
        pairs = [batch(seed), batch(seed + 1)]
        both = tuple(torch.stack(parts) for parts in zip(*pairs, strict=True))
        torch.testing.assert_close(listed.round(pairs), stacked.round(both))
    torch.testing.assert_close(listed.W, stacked.W)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([batch(0)], "a round of 2 learners needs 2 batches, got 1; pass None"),
        ([batch(0)] * 3, "needs 2 batches, got 3"),
        (batch(0), r"tensors \[2, batch, ...\], got one of shape \(5, 6\); give one batch per learner"),
        ((torch.zeros(2, 5, 6), torch.zeros((), dtype=torch.int64)), r"got one of shape \(\)"),
        (iter([]), "got list_iterator"),
        (None, "got NoneType"),
        ({}, "got dict"),
    ],
    ids=["few", "many", "one batch", "scalar", "iterator", "none", "empty"],
)
def test_batches_that_are_not_one_per_learner_are_refused(batches: Any, message: str) -> None:
    trained = replicas()
    with pytest.raises(SettingError, match=message):
        trained.round(batches)
    assert trained.rounds == 0


def test_running_from_an_iterator_is_round_after_round() -> None:
    by_rounds, running = replicas(), replicas()
    expected = [by_rounds.round([batch(seed), batch(seed + 1)]) for seed in range(0, 12, 2)]
    source = stream()
    assert torch.equal(running.run(source, 6), torch.stack(expected))
    assert torch.equal(running.W, by_rounds.W)
    assert torch.equal(next(source)[0], batch(12)[0]), "no batch is taken that is not used"


def test_running_ends_with_the_batches_and_the_last_round_may_be_short() -> None:
    trained = replicas()
    losses = trained.run(iter([batch(seed) for seed in range(5)]), 10)
    assert losses.isnan().tolist() == [[False, False], [False, False], [False, True]]
    assert trained.run(iter([]), 10).shape == (0, 2)


def test_running_goes_through_a_list_once() -> None:
    listed, iterated = replicas(), replicas()
    batches = [batch(seed) for seed in range(6)]
    listed.run(batches, 3)  # type: ignore[arg-type]
    iterated.run(iter(batches), 3)
    assert torch.equal(listed.W, iterated.W)


def test_learners_come_and_go_between_rounds() -> None:
    trained = replicas(2, sync=bow.SMA(mu=0.0))
    trained.run(stream(), 3)
    trained.resize(trained.learners + 1)
    assert trained.learners == 3
    assert torch.equal(trained.W[2], trained.z)
    before_w, before_z = trained.W.clone(), trained.z.clone()
    trained.round([None] * 3)
    corrections = (before_w - before_z) / 3
    torch.testing.assert_close(trained.z, before_z + corrections.sum(0))
    torch.testing.assert_close(trained.W, before_w - corrections)
    trained.resize(trained.learners - 1)
    before_w, before_z = trained.W.clone(), trained.z.clone()
    trained.round([None] * 2)
    torch.testing.assert_close(trained.z, before_z + ((before_w - before_z) / 2).sum(0))


def test_a_learner_that_comes_has_fresh_optimizer_state() -> None:
    trained = replicas(2, optimizer=functools.partial(torch.optim.AdamW, lr=0.01))
    trained.run(stream(), 3)
    trained.resize(trained.learners + 1)
    trained.run(stream(), 1)
    steps = [float(state["step"]) for state in trained.optimizer.state.values()]
    assert steps == [4, 4, 1]


def test_a_learner_that_would_make_averaging_unstable_is_refused_before_anything_changes() -> None:
    trained = replicas(2, sync=bow.SMA(alpha=0.8, mu=0.5))
    trained.run(stream(), 3)
    weights, z = trained.W.clone(), trained.z.clone()
    with pytest.raises(SettingError, match=r"alpha=0.8 is unstable with 3 learners and mu=0.5: .* below 0.6667"):
        trained.resize(trained.learners + 1)
    assert trained.learners == 2
    assert torch.equal(trained.W, weights)
    assert torch.equal(trained.z, z)
    assert trained.round([batch(0), batch(1)]).isfinite().all()


def test_an_unstable_alpha_is_refused_at_the_start() -> None:
    with pytest.raises(SettingError, match=r"alpha=0.9 is unstable with 4 learners"):
        replicas(4, sync=bow.SMA(alpha=0.9))


def test_the_only_learner_stays() -> None:
    trained = replicas(1)
    with pytest.raises(SettingError, match=r"learners must be .*at least 1"):
        trained.resize(0)
    assert trained.learners == 1


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "sync", [bow.SMA(), bow.SMA(every=3), bow.SSGD(), bow.DiLoCo(every=4), bow.LocalSGD(every=3), bow.ASGD()], ids=repr
)
@pytest.mark.parametrize("optimizer", [SGD, functools.partial(torch.optim.AdamW, lr=0.01)], ids=["SGD", "AdamW"])
def test_a_training_state_goes_on_exactly(sync: Any, optimizer: Any) -> None:
    first = replicas(3, sync=sync, optimizer=optimizer)
    first.run(stream(), 5)
    state = first.training_state()
    second = replicas(2, sync=sync, optimizer=optimizer)
    second.run(stream(500), 2)
    expected = first.run(stream(20), 5)
    second.load_training_state(state)
    assert (second.learners, second.rounds) == (3, 5)
    assert torch.equal(second.run(stream(20), 5), expected)
    assert torch.equal(second.W, first.W)
    assert all(torch.equal(second.state_dict()[name], value) for name, value in first.state_dict().items())


NODES = bow.TwoLevel(bow.SMA(), bow.DiLoCo(every=100))


@pytest.mark.parametrize(("sync", "falls"), [(bow.SMA(), False), (bow.SMA(), True), (NODES, False)])
def test_one_learner_goes_on_as_several_without_momentum_of_the_central_model(sync: Any, falls: bool) -> None:
    """As where learners are added to a training under way, also where the learning rate had fallen."""
    first = replicas(1, sync=sync)
    first.run(stream(), 5)
    if falls:
        first.optimizer.param_groups[0]["lr"] *= 0.4
        first.run(stream(5), 2)
    second = replicas(1, sync=sync)
    second.load_training_state(first.training_state(), learners=2)
    first.loop.resize(2)
    assert torch.equal(first.run(stream(20), 5), second.run(stream(20), 5))
    assert torch.equal(first.W, second.W)


def test_a_node_of_one_learner_is_saved_for_more() -> None:
    trained = replicas(1, sync=NODES)
    trained.run(stream(), 3)
    before = copy.deepcopy(trained.loop.group.matrix.state)
    (kept,) = trained.training_state()["group"]["devices"]
    assert kept
    assert all(torch.equal(tensor, trained.W[0]) for tensor in kept.values())
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.loop.group.matrix.state.items())


@pytest.mark.filterwarnings("error")
def test_the_central_model_of_one_learner_is_trained_before_it_would_be_averaged() -> None:
    trained = replicas(1, sync=bow.SMA(every=100))
    trained.run(stream(), 3)
    for one, other in zip(trained.export().parameters(), trained.learner(0).parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_training_state_is_tensors_and_plain_values(tmp_path: Any) -> None:
    trained = replicas()
    trained.run(stream(), 2)
    torch.save(trained.training_state(), tmp_path / "state.pt")
    trained.load_training_state(torch.load(tmp_path / "state.pt", weights_only=True))


def test_a_training_state_is_a_copy() -> None:
    trained = replicas()
    state = trained.training_state()
    weights = trained.W.clone()
    trained.run(stream(), 2)
    trained.load_training_state(state)
    assert torch.equal(trained.W, weights)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"sync": bow.SSGD()}, "sync 'SMA', this training has 'SSGD'"),
        ({"optimizer": torch.optim.AdamW}, "optimizer 'SGD', this training has 'AdamW'"),
        ({"model": nn.Linear(6, 3)}, "parameters 51, this training has 21"),
        ({"optimizer": lambda ps: SGD([{"params": [p]} for p in ps])}, "resume with the same model"),
        ({"learners": 2, "sync": bow.SMA(alpha=0.75)}, "alpha=0.75 is unstable with 3 learners"),
    ],
    ids=["sync", "optimizer", "model", "groups", "alpha"],
)
def test_a_training_state_of_another_training_is_refused_before_anything_changes(
    other: dict[str, Any], message: str
) -> None:
    state = replicas(3).training_state()
    trained = replicas(**other)
    trained.run(stream(), 2)
    weights = trained.W.clone()
    with pytest.raises((CheckpointError, SettingError), match=message):
        trained.load_training_state(state)
    assert torch.equal(trained.W, weights)


def test_the_export_has_storage_of_its_own() -> None:
    trained = replicas()
    trained.run(stream(), 2)
    exported = trained.export()
    before = exported[0].weight.clone()
    assert exported[0].weight.untyped_storage().nbytes() == exported[0].weight.nbytes
    trained.run(stream(), 2)
    assert torch.equal(exported[0].weight, before)


def test_independent_learners_are_averaged_when_they_settle() -> None:
    trained = replicas(sync=bow.Independent())
    before = trained.z.clone()
    trained.run(stream(), 3)
    assert torch.equal(trained.z, before)
    trained.settle()
    torch.testing.assert_close(trained.z, trained.W.mean(0))


@pytest.mark.parametrize("built", [True, False])
def test_auto_is_the_rule_of_thumb(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.engines.choice.is_built", lambda: built)
    monkeypatch.setattr("bow.engines.choice.available_cores", lambda: [0, 1])
    trained = replicas("auto", engine="auto")
    assert trained.learners == 2
    assert trained.engine == ("graph" if built else "eager")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learners": 0}, 'learners must be .*at least 1, or "auto", got 0'),
        ({"learners": True}, "got True"),
        ({"expected_rounds": "x"}, "expected_rounds must be a whole number"),
        ({"clip_norm": math.nan}, "clip_norm must be a finite number"),
        ({"learners": 2.0}, "got 2.0"),
        ({"engine": "eagre"}, "engine must be one of auto, eager, fused, .*, got 'eagre'"),
        ({"sync": bow.SMA}, r"sync must be a synchroniser such as bow.SMA\(\)"),
        ({"device": "tpu"}, "device must be"),
        ({"device": "cuda:99"}, 'use device="cpu"'),
        ({"step": cross_entropy}, "give either loss= or step=, got both"),
        ({"on_nan": "ignore"}, 'on_nan must be "restart", "continue" or "error"'),
        ({"precision": "float16"}, 'precision must be "bfloat16" or None'),
        ({"clip_norm": 0.0}, "clip_norm must be above 0"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"world": "all"}, "world must be a result of bow.cluster.join, got str"),
        ({"buffers": "sum"}, "buffers must be one of average, recalibrate, first"),
    ],
    ids=lambda given: given if isinstance(given, str) else next(iter(given)),
)
def test_wrong_settings_are_refused_in_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        replicas(**settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.run(iter([]), "2"), "rounds must be a whole number"),
        (lambda r: r.run(iter([]), math.nan), "rounds must be a whole number"),
        (lambda r: r.resize("3"), "learners must be a whole number"),
        (lambda r: r.resize(2.0), "learners must be a whole number"),
        (lambda r: r.learner(7), "learner must be a whole number from 0 to 1, got 7"),
        (lambda r: r.load_training_state(r.training_state(), "2"), "learners must be a whole number"),
    ],
)
def test_counts_are_whole_numbers(call: Callable[[bow.Replicas], Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        call(replicas(2))


def test_batches_have_values() -> None:
    with pytest.raises(DataError, match="meta device"):
        replicas(2).round([tuple(tensor.to("meta") for tensor in batch(0)) for _ in range(2)])


@pytest.mark.parametrize("part", ["group", "drop"])
def test_a_damaged_training_state_is_refused(part: str) -> None:
    trained = replicas()
    state = trained.training_state()
    assert state is not None
    with pytest.raises(CheckpointError, match="damaged"):
        trained.load_training_state({**state, part: {**state[part], next(iter(state[part])): None, "more": 1}})


@pytest.mark.parametrize("state", [3, None, "state"])
def test_what_is_no_training_state_is_refused(state: Any) -> None:
    with pytest.raises(CheckpointError, match=r"training_state|does not match"):
        replicas().load_training_state(state)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_replicas_say_that_they_cannot_be_copied(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(SettingError, match=r"use export\(\) for the central model"):
        copied(replicas(2))


def test_neither_loss_nor_step_is_refused() -> None:
    batch = torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(SettingError, match=r"give loss= \(or step=\): the batches are tuples"):
        bow.Replicas(nn.Linear(2, 2), learners=1, engine="eager").round([batch])


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made, given: made.central[0].requires_grad_(True), "parameter '0.weight' was frozen .* requires a"),
        (lambda made, given: given[0].requires_grad_(True), "parameter '0.weight' was frozen .* requires a gradient"),
        (lambda made, given: made.learner(0)[2].requires_grad_(False), "parameter '2.weight' was trained .* is frozen"),
        (lambda made, given: made.central[2].requires_grad_(False), "parameter '2.weight' was trained .* is frozen"),
    ],
    ids=["unfrozen", "unfrozen in the user's own", "frozen", "frozen in the central model"],
)
def test_parameters_that_are_frozen_or_unfrozen_meanwhile_are_refused(change: Any, message: str, engine: Any) -> None:
    given = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    given[0].requires_grad_(False)
    made = bow.Replicas(given, nn.functional.cross_entropy, learners=2, engine=engine, device="cpu")
    batch = torch.randn(4, 4), torch.zeros(4, dtype=torch.int64)
    made.round([batch, batch])
    given[2].requires_grad_(False)  # as a reference that is compared with, which is not trained on
    made.round([batch, batch])
    change(made, given)
    with pytest.raises(ModelError, match=message):
        made.round([batch, batch])
    assert made.rounds == 2
    made.close()


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize(
    ("cast", "remedy"),
    [
        (lambda x, y: (x.double(), y), r"torch\.float64, torch\.int64 .*; give the data as the model has it: \.float"),
        (lambda x, y: (x.int(), y), r"torch\.int32, torch\.int64 .*; give the data as the model has it: \.float"),
        (lambda x, y: (x, y.double()), r"torch\.float32, torch\.float64 .*; give the labels as \.long"),
    ],
)
def test_batches_of_another_dtype_are_refused_with_the_remedy(engine: Any, cast: Any, remedy: str) -> None:
    for run in (lambda r, b: r.round(b), lambda r, b: r.run(iter(b), rounds=1)):
        with pytest.raises(DataError, match=remedy):
            run(replicas(engine=engine), [cast(*batch(0)), cast(*batch(1))])


def test_weights_are_not_loaded_by_assignment() -> None:
    model = nn.Linear(5, 3)
    trained = bow.Replicas(model, cross_entropy, learners=2, engine="eager")
    with pytest.raises(SettingError, match="assign=True would replace tensors that are trained in place; leave it out"):
        trained.load_state_dict(model.state_dict(), assign=True)
