"""Networks, strategies and steps of the predicted benchmark."""

import functools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from benchmarks.random_networks import RANDOM
from bow.engines import step_from_loss
from bow.errors import BowError
from bow.models.networks import NETWORKS as SIZES
from bow.models.networks import Network
from bow.planning.problem.partition import Partition, Split
from bow.planning.search.baselines import BASELINES, baseline
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.problem import Problem
from bow.planning.search.search import search
from bow.planning.search.search_space import SplitSpace
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime, capture_operators
from bow.replicas import OptimizerFactory
from bow.schedule import Span
from bow.seeds import derive_seed

OPTIMIZER: OptimizerFactory = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)


@dataclass(frozen=True)
class PredictedNetwork:
    network: Network
    samples: int  # batch size: several times that of the tiny size, so that operators take longer than their messages

    def captured(self) -> tuple[CapturedOperators, nn.Module, Any]:
        """Return its captured step, the model and a batch."""
        torch.manual_seed(0)
        model, batch = self.network.build("tiny"), self.network.batch("tiny", samples=self.samples)
        return capture_operators(model, batch, step=step_from_loss(self.network.loss)), model, batch


PAPERS = {"alexnet": 64, "inception": 16, "rnnlm": 128, "nmt": 96}  # batch sizes

# By name
NETWORKS: Mapping[str, PredictedNetwork] = {
    name: PredictedNetwork({**SIZES, **RANDOM}[name], samples)
    for name, samples in {**PAPERS, **dict.fromkeys(RANDOM, 64)}.items()
}


Strategy: TypeAlias = tuple[Split, ...]

SHARES = (0.05, 0.15, 0.4)  # fractions of the operators of a mixed strategy that have random splits, cyclic

BASES = ("data", "single", "model")  # splits of the other operators of a mixed strategy, cyclic


def draw_strategies(
    problem: Problem, num_random: int, num_mixed: int, proposals: int, seed: int
) -> dict[str, Strategy]:
    """Return distinct strategies by name."""
    found: dict[Strategy, str] = {}
    for name, splits in _all(problem, num_random, num_mixed, proposals, seed):
        found.setdefault(splits, name)
    return {name: splits for splits, name in found.items()}


def _all(
    problem: Problem, num_random: int, num_mixed: int, proposals: int, seed: int
) -> Iterator[tuple[str, Strategy]]:
    for name in BASELINES:
        try:
            yield name, baseline(problem, name)
        except BowError:  # not every strategy is applicable to every network
            continue
    settings = SearchSettings(budget_s=None, proposals=proposals, patience=None, descend=False, seed=seed)
    yield "search", search(problem, settings).partition.splits
    space = SplitSpace(problem.graph, problem.rules, problem.topology.num_devices)
    source = random.Random(derive_seed(seed, 0))
    for number in range(num_mixed):
        base, share = BASES[number % len(BASES)], SHARES[number // len(BASES) % len(SHARES)]
        yield f"{base}, {share:.0%} random {number}", mixed(baseline(problem, base), space, share, source)
    for number in range(num_random):
        yield f"random {number}", space.random_partition(source)


def mixed(splits: Sequence[Split], space: SplitSpace, share: float, source: random.Random) -> Strategy:
    """Return a strategy with random splits of some operators."""
    changed = list(splits)
    for operator in source.sample(range(len(changed)), max(1, round(share * len(changed)))):
        changed[operator] = space.draw(operator, source)
    return tuple(changed)


WARM_UP = 1


@dataclass(frozen=True)
class Timed:
    seconds: tuple[float, ...]  # of every step, from a common start to the last device's end
    spans_ms: dict[str, dict[str, float]]


def time_strategies(
    group: ProcessGroup,
    captured: CapturedOperators,
    model: nn.Module,
    batch: Any,
    optimizer: OptimizerFactory,
    strategies: Mapping[str, tuple[Split, ...]],
    turns: int,
    between: Callable[[bool], None] = lambda is_timed: None,
) -> dict[str, Timed]:
    """Run all strategies in turns, every other turn in reverse order; the second of two successive steps is timed.

    All processes of the group call this.
    """
    runtimes = {
        name: TileRuntime(captured, Partition(captured.graph.hash, splits), model, optimizer, group)
        for name, splits in strategies.items()
    }
    own: dict[str, list[float]] = defaultdict(list)
    for turn in range(WARM_UP + turns):
        for name in list(runtimes) if turn % 2 else reversed(runtimes):
            # The first step finds cold caches after another strategy, unlike in a training.
            for is_timed in (False, True):
                group.sum_all([torch.zeros(1)])  # barrier
                began = time.perf_counter()
                runtimes[name].step(batch, turn)
                if is_timed and turn >= WARM_UP:
                    own[name].append(time.perf_counter() - began)
        between(turn >= WARM_UP)
    of_all = group.all_gather(dict(own))
    return {
        name: Timed(
            tuple(max(times) for times in zip(*(of_device[name] for of_device in of_all), strict=True)),
            _recorded(runtime, batch),
        )
        for name, runtime in runtimes.items()
    }


def spans_ms(spans: Iterable[Span]) -> dict[str, dict[str, float]]:
    """Total milliseconds by place and category."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        found[span.place][span.category] += span.duration_ns / 1e6
    return {place: {name: round(ms, 3) for name, ms in sorted(of.items())} for place, of in sorted(found.items())}


def _recorded(runtime: TileRuntime, batch: Any) -> dict[str, dict[str, float]]:
    runtime.record()
    runtime.step(batch, 0)
    runtime.record(False)
    return spans_ms(runtime.timeline().spans)
