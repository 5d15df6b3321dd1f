from __future__ import annotations

import copy
import functools
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bow
import bow.training.trials as module
from bow.errors import DeviceMemoryError, SettingError
from bow.training.replicas import Replicas
from bow.training.signals import Signals
from bow.training.trials import Trials
from bow.tuner import EngineSetting, Trial, TrialResult
from tests.training.blueprints import SGD, linear, opened, replicas_config, samples, ticking


@pytest.fixture(autouse=True)
def _warm_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_UP_S", 0.0)


@pytest.fixture
def made() -> Iterator[list[Trials]]:
    """Trials that are closed behind the test."""
    trials: list[Trials] = []
    yield trials
    for each in trials:
        each.close()


def trials(made: list[Trials], data: Any = None, signals: Signals | None = None, **settings: Any) -> Trials:
    feed = opened(samples() if data is None else data).feed()
    made.append(Trials(replicas_config(**settings), feed, signals, clock=ticking()))
    return made[-1]


def measure(trials: Trials, engine: str = "eager", learners: int = 2, threads: int = 1) -> TrialResult:
    return trials.run(Trial(EngineSetting(engine, learners, threads), seconds=0.02, repeats=4, why=""))


def test_a_trial_measures_every_repeat_and_what_it_took(made: list[Trials]) -> None:
    measurement = measure(trials(made))
    assert measurement.failure is None
    assert len(measurement.rates) == 4
    # a clock that is looked at once a round: 8 samples, 1 ms
    assert measurement.rates == pytest.approx([8 / 0.001] * 4, rel=0.3)
    assert measurement.seconds > 0.02
    assert measurement.compile_s == 0


def test_a_trial_that_takes_longer_than_expected_ends_with_what_it_has(made: list[Trials]) -> None:
    slow = trials(made)
    trial = Trial(EngineSetting("eager", 2), seconds=0.02, repeats=4, why="", most_s=0.0)
    measurement = slow.run(trial)
    assert measurement.failure is None
    assert len(measurement.rates) == 1


def test_learners_of_an_engine_are_kept_and_come_and_go(made: list[Trials], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []
    original = Replicas.rounds_at_once

    def noting(self: Replicas, batches: Any) -> Any:
        ran.append((id(self), self.learners))
        return original(self, batches)

    monkeypatch.setattr(Replicas, "rounds_at_once", noting)
    run = trials(made)
    for learners in (1, 3, 2):
        assert measure(run, learners=learners).failure is None
    assert len({replicas for replicas, _ in ran}) == 1
    assert list(dict.fromkeys(learners for _, learners in ran)) == [1, 3, 2]


@pytest.mark.parametrize("is_watched", [False, True])
def test_rounds_are_timed_one_by_one_where_the_training_runs_them_so(
    made: list[Trials], monkeypatch: pytest.MonkeyPatch, is_watched: bool
) -> None:
    together: list[int] = []
    original = Replicas.rounds_at_once

    def noting(self: Replicas, batches: Any) -> Any:
        together.append(len(batches))
        return original(self, batches)

    monkeypatch.setattr(Replicas, "rounds_at_once", noting)
    monkeypatch.setattr("bow.engines.loop.GROUP_S", 1e9)
    assert measure(trials(made, is_watched=is_watched), "graph").failure is None
    assert (max(together) == 1) == is_watched


@pytest.mark.parametrize("most_held", [0, 2**40])
def test_learners_of_other_engines_are_let_go_where_they_hold_much(
    made: list[Trials], monkeypatch: pytest.MonkeyPatch, most_held: int
) -> None:
    monkeypatch.setattr(module, "MOST_HELD_BYTES", most_held)
    run = trials(made)
    for engine in ("eager", "streams", "eager"):
        assert measure(run, engine).failure is None
    assert len(run._made) == (2 if most_held else 1)


class Drawing:
    """A step that draws random numbers of all kinds."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        random.random()
        np.random.rand()
        torch.rand(1)
        return cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("fails", [False, True])
def test_trials_leave_threads_random_numbers_and_warnings_as_they_were(made: list[Trials], fails: bool) -> None:
    drawing = Drawing()

    def step(model: nn.Module, batch: Any) -> Tensor:
        loss = drawing(model, batch)
        warnings.warn("not for the user", stacklevel=1)
        if fails:
            raise ValueError("no")
        return loss

    def state() -> tuple[Any, ...]:
        arrays = np.random.get_state()
        filters = list(warnings.filters)
        return torch.get_num_threads(), random.getstate(), str(arrays), torch.get_rng_state().tolist(), filters

    run = trials(made, step=step)  # it makes the model, with a seed
    before = state()
    measurement = measure(run, threads=2)
    assert (measurement.failure is None) != fails
    assert state() == before


def test_interrupting_a_trial_leaves_them_too(made: list[Trials]) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        raise KeyboardInterrupt

    before = torch.get_num_threads(), list(warnings.filters)
    with pytest.raises(KeyboardInterrupt):
        measure(trials(made, step=step), threads=2)
    assert (torch.get_num_threads(), list(warnings.filters)) == before


def test_the_template_is_read_only(made: list[Trials]) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = copy.deepcopy(model.state_dict())
    run = trials(made, model=model)
    for engine in ("eager", "streams"):
        assert measure(run, engine).failure is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loader_is_not_read_by_trials(made: list[Trials]) -> None:
    read: list[int] = []

    class Noting(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return super().__getitem__(index)

    data = opened(DataLoader(Noting(*samples()), batch_size=4))
    before = len(read)
    made.append(Trials(replicas_config(), data.feed(), clock=ticking()))
    assert measure(made[-1], learners=3).failure is None
    assert len(read) == before


def test_nothing_diverges_that_a_scheduler_would_have_begun_more_gently(made: list[Trials]) -> None:
    huge = functools.partial(torch.optim.SGD, lr=1e30)
    run = trials(made, optimizer=huge, on_nan="error")
    assert run.probe(EngineSetting("eager", 2), seconds=0.005) > 0
    assert measure(run).failure is None


@pytest.mark.parametrize("optimizer", [SGD, functools.partial(torch.optim.Adam, lr=torch.tensor(0.1))], ids=str)
def test_learners_stand_still_but_learn(made: list[Trials], optimizer: Any) -> None:
    run = trials(made, optimizer=optimizer)
    assert measure(run).failure is None
    (replicas,) = run._made.values()
    torch.testing.assert_close(replicas.W[0], replicas.z)
    assert replicas.G.abs().sum() > 0


def test_what_an_engine_does_not_like_is_the_answer(made: list[Trials]) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("not with me")

    measurement = measure(trials(made, step=step))
    assert "not with me" in str(measurement.failure)
    assert not measurement.out_of_memory
    assert measurement.rates == []


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (DeviceMemoryError("learners=2 ran out"), "out of memory"),
        (SettingError("learners=2 needs 9 GiB"), "not enough memory: learners=2 needs 9 GiB"),
    ],
)
def test_no_memory_is_a_wall(
    made: list[Trials], monkeypatch: pytest.MonkeyPatch, error: Exception, failure: str
) -> None:
    run = trials(made)
    assert measure(run, learners=1).failure is None
    monkeypatch.setattr(Replicas, "resize", lambda self, learners: (_ for _ in ()).throw(error))
    measurement = measure(run, learners=2)
    assert measurement.failure == failure
    assert measurement.out_of_memory == isinstance(error, DeviceMemoryError)
    assert measurement.no_room == isinstance(error, SettingError)
    monkeypatch.undo()
    assert measure(run, learners=2).failure is None  # made anew


def test_an_engine_that_falls_back_is_not_measured(made: list[Trials], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replicas, "engine", property(lambda self: "eager"))
    assert measure(trials(made), "streams").failure == "it runs as eager"


def test_a_probe_lasts_for_a_while_behind_a_first_round(made: list[Trials]) -> None:
    ran: list[int] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        ran.append(torch.get_num_threads())
        return cross_entropy(model(batch[0]), batch[1])

    rate = trials(made, step=step).probe(EngineSetting("eager", threads=2))
    assert rate == pytest.approx(4 / 0.001, rel=0.1)  # a clock that is looked at once a round
    assert len(ran) == pytest.approx(module.PROBE_S / 0.001, abs=5)
    assert set(ran) == {2}


@pytest.mark.parametrize("built", [False, True])
def test_building_the_native_runtime_counts_as_compilation(
    made: list[Trials], monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    monkeypatch.setattr(module, "is_built", lambda: built)
    run = trials(made)
    assert (measure(run, "graph").compile_s > 0) is not built
    assert measure(run, "graph").compile_s == 0


def test_a_step_that_cannot_be_one_region_is_not_to_be_compiled(made: list[Trials]) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0])
        return cross_entropy(outputs * torch.bernoulli(outputs.detach().sigmoid()), batch[1])

    found = [trials(made, **given).compile_s(EngineSetting("graph", 1)) for given in ({}, {"step": step})]
    assert found[0] is not None
    assert found[1] is None


def test_probing_raises_what_the_user_has_to_hear(made: list[Trials]) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(Exception, match="mine"):
        trials(made, step=step).probe(EngineSetting("eager", 1))


@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_signals_come_from_batches_that_differ(made: list[Trials], kind: str) -> None:
    data = samples() if kind == "tensors" else DataLoader(TensorDataset(*samples()), batch_size=4)
    signals = Signals(4, bow.SMA())
    run = trials(made, data, signals, model=linear())
    for _ in range(3):
        assert measure(run).failure is None
    if kind == "loader":  # all learners get the batch that was kept
        assert signals.noise_scale is None
    else:
        assert signals.noise_scale is not None
        assert signals.noise_scale > 1
