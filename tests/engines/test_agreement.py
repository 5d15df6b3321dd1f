"""The contract of the engines: for the same seed and batches, every engine follows `eager` to rounding."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo.utils import counters

import bow
from tests.engines.pairs import FAKE, OPTIMIZERS, OTHERS, Pair
from tests.grouped import of_replicas
from tests.synchronisers import SYNCHRONISERS

# The compiler, when it is first imported, uses what torch itself has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")

CLASSES, SIZE, BATCH, ROUNDS = 3, 6, 4, 12


def conv_net(*, norm: bool) -> nn.Module:
    # No bias in front of batch norm: its gradient is rounding noise around 0, which AdamW blows up to steps.
    middle: list[nn.Module] = [nn.BatchNorm2d(4)] if norm else []
    last: list[nn.Module] = [nn.BatchNorm1d(8)] if norm else []
    side = SIZE // 2
    return nn.Sequential(
        nn.Unflatten(1, (1, SIZE, SIZE)),
        nn.Conv2d(1, 4, 3, padding=1, bias=not norm),
        *middle,
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * side * side, 8, bias=not norm),
        *last,
        nn.Tanh(),
        nn.Linear(8, CLASSES),
    )


class Tied(nn.Module):
    """One weight used twice, one parameter frozen, one never used, one buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE * SIZE, SIZE * SIZE)
        self.second = nn.Linear(SIZE * SIZE, SIZE * SIZE)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.full((SIZE * SIZE,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(7))
        self.out = nn.Linear(SIZE * SIZE, CLASSES)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.out(torch.tanh(self.second(torch.tanh(self.first(inputs))) * self.frozen))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(SIZE * SIZE, CLASSES),
    "mlp": lambda: nn.Sequential(nn.Linear(SIZE * SIZE, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, CLASSES)),
    "mlp-batch-norm": lambda: nn.Sequential(
        nn.Linear(SIZE * SIZE, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    ),
    "conv": functools.partial(conv_net, norm=False),
    "conv-batch-norm": functools.partial(conv_net, norm=True),
    "tied": Tied,
}


@dataclass(frozen=True)
class Case:
    engine: str
    model: str
    optimizer: str
    sync: str = "sma"
    learners: int = 3

    def __str__(self) -> str:
        return f"{self.engine}-{self.model}-{self.optimizer}-{self.sync}-k{self.learners}"

    def pair(self, **settings: Any) -> Pair:
        return Pair(
            self.engine,
            MODELS[self.model],
            optimizer=self.optimizer,
            learners=self.learners,
            sync=SYNCHRONISERS[self.sync],
            **settings,
        )


def small_for(sync: str) -> str:
    """A model for a synchroniser, which sees of models but vectors of parameters and buffers."""
    return "conv-batch-norm" if sync == "sma" else "mlp-batch-norm"


CASES = [
    *(Case(e, model, optimizer) for e in OTHERS for model in MODELS for optimizer in OPTIMIZERS),
    *(Case(e, small_for(sync), "momentum", sync, 4) for e in OTHERS for sync in SYNCHRONISERS),
    *(Case(e, "mlp-batch-norm", optimizer, "sma", 1) for e in OTHERS for optimizer in OPTIMIZERS),
]


def part_of(cases: list[Case], first: int = 1) -> list[Any]:
    """A third of each engine's cases, others for each, on the fake device a fifth; `--nightly` has them all."""
    seen: Counter[str] = Counter()
    chosen = []
    for case in cases:
        number, turn = seen[case.engine], OTHERS.index(case.engine)
        is_nightly = (number + turn) % 5 if FAKE in case.engine else (number + turn + first) % 3
        chosen.append(pytest.param(case, marks=pytest.mark.nightly if is_nightly else ()))
        seen[case.engine] += 1
    return chosen


def random_batch(seed: int, samples: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, SIZE * SIZE, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (samples,), generator=generator)


@pytest.mark.quick(5)
@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("case", part_of(CASES), ids=str)
def test_engines_follow_eager(case: Case) -> None:
    with case.pair() as pair:
        for t in range(ROUNDS):
            pair.round([random_batch(10 * t + j) for j in range(case.learners)])
        assert pair.engine == case.engine  # it did not fall back


CHANGING = [Case(e, small_for(sync), "momentum", sync, 2) for e in OTHERS for sync in SYNCHRONISERS]


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("case", part_of(CHANGING, first=2), ids=str)  # other synchronisers than above
def test_engines_follow_eager_through_short_rounds_and_changes_of_learners(case: Case) -> None:
    with case.pair() as pair:
        for t, k in enumerate([2, 2, 3, 3, 4, 3, 3, 2, 2]):
            resize(pair, k)
            # None of two samples, whose batch norm divides rounding errors by next to nothing.
            sizes = [BATCH + 2 - t % 3] + [BATCH + 2] * (k - 1)
            batches: list[Any] = [random_batch(10 * t + j, size) for j, size in enumerate(sizes)]
            pair.round([*batches[:-1], None] if t in (3, 6) else batches)
        assert pair.engine == case.engine


def resize(pair: Pair, learners: int) -> None:
    while (current := pair.trainings[0].learners) != learners:
        for training in pair.trainings:
            training.resize(training.learners + 1) if current < learners else training.resize(training.learners - 1)
        pair.compare()


@pytest.mark.sample(2)
@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("sync", ["sma", "ssgd"])
@pytest.mark.parametrize("engine", OTHERS)
def test_engines_clip_alike(engine: str, sync: str) -> None:
    case = Case(engine, "conv", "momentum", sync)
    with case.pair(clip_norm=None) as free, case.pair(clip_norm=0.1) as clipped:
        for t in range(4):
            for pair in (free, clipped):
                pair.round([random_batch(10 * t + j) for j in range(3)])
        assert not torch.allclose(free.trainings[1].W, clipped.trainings[1].W, atol=1e-3)  # the limit was felt


def every_pair_of_settings() -> Iterator[Any]:
    """Any two of engine, optimizer and synchroniser meet in a case that always runs; the others are nightly."""
    engines = [name for name in OTHERS if FAKE not in name]  # those hear of it later
    for numbers_and_case in itertools.product(*map(enumerate, (engines, OPTIMIZERS, SYNCHRONISERS))):
        numbers, case = zip(*numbers_and_case, strict=True)
        yield pytest.param(*case, marks=pytest.mark.nightly if sum(numbers) % 2 else ())


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.filterwarnings("ignore:.*restarts from the central model", "ignore:.*is excluded from the mean")
@pytest.mark.parametrize("model", [pytest.param("mlp", marks=pytest.mark.nightly), "mlp-batch-norm"])
@pytest.mark.parametrize(("engine", "optimizer", "sync"), list(every_pair_of_settings()))
def test_engines_restart_a_diverged_learner_alike(engine: str, optimizer: str, sync: str, model: str) -> None:
    with Case(engine, model, optimizer, sync).pair() as pair:
        for t in range(8):
            batches = [random_batch(10 * t + j) for j in range(3)]
            if t in (2, 5):
                batches[t % 3][0][0, 0] = torch.inf
            pair.round(batches)
        assert [training.loop.num_restarts for training in pair.trainings] == [2, 2]
        assert pair.engine == engine


def linear(engine: str, learners: int, sync: str, **settings: Any) -> bow.Replicas:
    """The gradient is the mean of a batch; momentum makes what is left behind visible."""

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).mean()

    torch.manual_seed(0)
    arguments = {"optimizer": functools.partial(torch.optim.SGD, lr=1e10, momentum=0.5), "device": "cpu", **settings}
    return bow.Replicas(
        nn.Linear(3, 1, bias=False).double(),
        **of_replicas(step=step, learners=learners, engine=engine, sync=SYNCHRONISERS[sync](), **arguments),
    )


USUAL, HUGE = 1e-10, 1e300
"""Gradients: times the learning rate, the one is 1 and the other infinite."""


@pytest.mark.sample(3)
@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.filterwarnings("ignore:.*restarts from the central model")
@pytest.mark.parametrize("learners", [1, 3])
@pytest.mark.parametrize("sync", ["sma", "easgd", "local-sgd", "diloco", "asgd"])
@pytest.mark.parametrize("engine", ["eager", *(name for name in OTHERS if FAKE not in name)])
def test_a_learner_starts_again_whose_step_leads_to_infinity(engine: str, sync: str, learners: int) -> None:
    bad = learners // 2
    with (
        contextlib.closing(linear(engine, learners, sync)) as replicas,
        contextlib.closing(linear("eager", learners, sync)) as poisoned,
    ):
        for t in range(6):
            for trained, unusual in ((replicas, HUGE), (poisoned, torch.nan)):
                sizes = [unusual if (t, j) == (2, bad) else USUAL for j in range(learners)]
                trained.round([torch.full((2, 3), size, dtype=torch.float64) for size in sizes])
            assert replicas.loop.num_restarts == (t >= 2)
            assert torch.isfinite(replicas.W).all()
            if sync not in ("local-sgd", "diloco"):  # which average it from z, and not from where it was
                torch.testing.assert_close(replicas.z, poisoned.z, rtol=1e-10, atol=1e-10)
        assert replicas.engine.startswith(engine)


@pytest.mark.filterwarnings("ignore:.*restarts from the central model")
@pytest.mark.parametrize("dampening", [0.0, 0.25])  # with dampening executors do not step themselves
@pytest.mark.parametrize("engine", ["graph", "streams"])
def test_a_learner_that_runs_ahead_to_infinity_starts_again(engine: str, dampening: float) -> None:
    optimizer = functools.partial(torch.optim.SGD, lr=1e10, momentum=0.5, dampening=dampening)
    with contextlib.closing(linear(engine, 3, "local-sgd", optimizer=optimizer, dispatch="first_come")) as replicas:
        for period in range(3):
            rounds = [[USUAL] * 3, [USUAL, HUGE if period == 1 else USUAL, USUAL], [USUAL] * 3]
            batches = [[torch.full((2, 3), size, dtype=torch.float64) for size in sizes] for sizes in rounds]
            replicas.rounds_at_once(batches)
            assert replicas.loop.num_restarts == (period >= 1)
            assert torch.isfinite(replicas.W).all()
            assert torch.isfinite(replicas.z).all()


CAPTURES = [
    *(Case("fused", model, "momentum") for model in reversed(MODELS)),  # tied weights by day
    *(Case("fused", model, "adamw") for model in ("mlp-batch-norm", "tied")),
    *(Case("eager", model, "momentum") for model in ("mlp-batch-norm", "conv")),
]


@pytest.mark.sample(9)
@pytest.mark.usefixtures("_unchecked_shapes")
@pytest.mark.parametrize("case", CAPTURES, ids=str)
def test_learning_tasks_are_captured_whole(case: Case) -> None:
    # A graph break would not show in the results: what is left over just runs slowly.
    counters.clear()
    with torch.compiler.set_stance("default", force_backend="aot_eager"), case.pair(compile=True) as pair:
        for t in range(3):
            pair.round([random_batch(10 * t + j) for j in range(3)])
        assert pair.engine == case.engine
    assert counters["graph_break"] == {}
    assert counters["stats"]["unique_graphs"] >= 1


@pytest.mark.nightly
@pytest.mark.usefixtures("_unchecked_shapes")
def test_a_compiled_engine_follows_eager() -> None:
    counters.clear()
    # One thread: no pool of threads that outlives the test.
    with torch._inductor.config.patch(compile_threads=1), Case("fused", "mlp-batch-norm", "momentum").pair() as pair:
        for t in range(ROUNDS):
            pair.round([random_batch(10 * t + j) for j in range(3)])
        assert pair.engine == "fused"
    assert counters["aot_autograd"]["ok"] >= 1
