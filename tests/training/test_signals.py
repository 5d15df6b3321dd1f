from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
import bow.training.signals as module
from bow.engines import STREAM_ENGINES
from bow.errors import SettingError
from bow.testing import FakeDevice
from bow.training.signals import Signals
from tests.grouped import of_replicas
from tests.training.blueprints import linear, samples

BATCH = 4
SGD = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.5)


@pytest.fixture(autouse=True)
def _looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 2)


@pytest.fixture
def made() -> Iterator[list[bow.Replicas]]:
    replicas: list[bow.Replicas] = []
    yield replicas
    for each in replicas:
        each.close()


def replicas(made: list[bow.Replicas], **settings: Any) -> bow.Replicas:
    given = {"learners": 4, "engine": "eager", "device": "cpu", "optimizer": SGD}
    made.append(bow.Replicas(linear(), cross_entropy, **of_replicas(**{**given, **settings})))
    return made[-1]


def train(learners: bow.Replicas, signals: Signals, rounds: int, period: int = 1) -> None:
    inputs, targets = samples()
    generator = torch.Generator().manual_seed(2)
    for _ in range(0, rounds, period):
        numbers = [
            torch.randint(0, len(inputs), (learners.learners, BATCH), generator=generator) for _ in range(period)
        ]
        learners.rounds_at_once([[(inputs[row], targets[row]) for row in each] for each in numbers])
        signals.observe(learners)


def direct_noise_scale(model: nn.Module) -> float:
    """`tr(Sigma) / |G|^2` from the gradient of every single sample."""
    inputs, targets = samples()
    rows = []
    for i in range(len(inputs)):
        grads = torch.autograd.grad(cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1]), model.parameters())
        rows.append(torch.cat([g.flatten() for g in grads]))
    gradients = torch.stack(rows)
    mean = gradients.mean(0)
    return float((gradients - mean).square().sum(1).mean() / mean.square().sum())


def test_the_noise_scale_is_that_of_single_samples(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA())
    train(replicas(made, learners=8, optimizer=functools.partial(torch.optim.SGD, lr=0.0)), signals, 300)
    assert signals.noise_scale == pytest.approx(direct_noise_scale(linear()), rel=0.15)


@pytest.mark.quick
@pytest.mark.parametrize("engine", ["graph", "streams"])
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.5}, {"sync": bow.SMA(every=2)}], ids=str)
def test_engines_show_the_same(made: list[bow.Replicas], engine: str, settings: dict[str, Any]) -> None:
    """`graph` steps and averages in one native pass, which writes no gradients unless somebody looks."""
    found = []
    for name in ("eager", engine):
        signals = Signals(BATCH, settings.get("sync", bow.SMA()))
        learners = replicas(made, engine=name, **settings)
        train(learners, signals, 40)
        assert learners.engine == name
        found.append((signals.noise_scale, signals._distances.value.noise, signals(8)))  # type: ignore[union-attr]
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", STREAM_ENGINES)
def test_devices_with_streams_show_the_same(made: list[bow.Replicas], engine: str) -> None:
    """They write gradients always, and nothing is captured anew for a look."""
    found = []
    device = FakeDevice()
    with torch.compiler.set_stance("force_eager"):
        for name, where in (("eager", "cpu"), (engine, device)):
            signals = Signals(BATCH, bow.SMA())
            learners = replicas(made, engine=name, device=where)
            train(learners, signals, 24)
            assert learners.engine == name
            assert learners.streams is None or not learners.optimizer._optimizer_step_post_hooks
            found.append((signals.noise_scale, signals(8)))
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_looking_changes_nothing(made: list[bow.Replicas]) -> None:
    weights = []
    for every in (2, 10**9):
        module.EVERY = every  # put back by the fixture
        learners = replicas(made, engine="graph")
        train(learners, Signals(BATCH, bow.SMA()), 30)
        weights.append(learners.W.clone())
        assert not learners.optimizer._optimizer_step_post_hooks or every == 2
    torch.testing.assert_close(*weights)


def test_rounds_that_run_as_one_are_looked_at(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA(every=3))
    learners = replicas(made, engine="streams", sync=bow.SMA(every=3), dispatch="first_come")
    train(learners, signals, 30, period=3)
    assert signals.noise_scale is not None


def test_gradients_that_nobody_wrote_say_nothing(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA())
    learners = replicas(made)
    learners.round([(torch.zeros(BATCH, 5), torch.zeros(BATCH, dtype=torch.long))] * 4)
    learners.G.zero_()
    signals._measure(learners)
    assert signals.noise_scale is None
    assert signals(8) == 1


def test_equal_gradients_have_no_noise(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA())
    signals._gradients.add(mean_square=1.0, square_of_mean=1.0 + 1e-6, vectors=3)  # rounding
    assert signals.noise_scale == 0
    assert signals(3) == pytest.approx(1 / 3)
    learners = replicas(made, learners=3)
    inputs, targets = samples()
    for _ in range(12):
        learners.round([(inputs[:BATCH], targets[:BATCH])] * 3)
        signals.observe(learners)
    assert signals.noise_scale == pytest.approx(0, abs=1e-4)
    assert signals(3) == pytest.approx(1 / 3, rel=1e-3)


def test_one_learner_and_rounds_in_which_one_sits_out_say_nothing(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA())
    train(replicas(made, learners=1), signals, 12)
    assert signals.noise_scale is None
    learners = replicas(made, learners=2)
    inputs, targets = samples()
    for _ in range(12):
        learners.round([(inputs[:BATCH], targets[:BATCH]), None])
        signals.observe(learners)
    assert signals.noise_scale is None


def test_a_synchronisation_task_every_n_rounds_pulls_less(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA(every=4))
    assert [signals._alpha(k) for k in (1, 2, 8)] == [1 / 4, 1 / 8, 1 / 32]
    assert Signals(BATCH, bow.EASGD(alpha=0.2, every=2))._alpha(8) == 0.1


def spread(signals: Signals) -> float:
    assert signals._distances.value is not None
    return signals._distances.value.noise


def test_a_drop_of_the_learning_rate_is_no_repulsion(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA())
    learners = replicas(made)
    scheduler = torch.optim.lr_scheduler.StepLR(learners.optimizer, step_size=1, gamma=0.1)
    train(learners, signals, 200)
    before, efficiency = spread(signals), signals(4)
    scheduler.step()
    for rounds in (3, 20, 100, 100):
        train(learners, signals, rounds)
        assert signals(4) == pytest.approx(efficiency, rel=0.15)
    assert spread(signals) < before / 30


def test_further_learners_are_no_repulsion(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA())
    learners = replicas(made, learners=2)
    train(learners, signals, 100)
    two = signals._repulsion
    for _ in range(6):
        learners.resize(learners.learners + 1)
        train(learners, signals, 3)
        assert signals._repulsion == two  # not known better yet
    train(learners, signals, 100)
    assert signals._repulsion == pytest.approx(two, abs=0.05)


def test_optimizers_without_a_formula_count_noise_only(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA())
    train(replicas(made, optimizer=torch.optim.AdamW), signals, 20)
    assert signals._repulsion == 0
    assert 0 < signals(8) < signals(2) < 1


def test_synchronisers_that_average_gradients_are_refused() -> None:
    with pytest.raises(SettingError, match=r'needs every learner\'s own gradient.*use objective="throughput"'):
        Signals(BATCH, bow.SSGD())


def test_learners_may_change_between_a_round_and_the_look(made: list[bow.Replicas]) -> None:
    signals = Signals(BATCH, bow.SMA())
    learners = replicas(made, learners=2)
    inputs, targets = samples()
    batch: tuple[Tensor, Tensor] = inputs[:BATCH], targets[:BATCH]
    for _ in range(6):
        learners.round([batch] * learners.learners)
        learners.resize(learners.learners + 1)
        signals.observe(learners)
    assert signals.noise_scale is None
