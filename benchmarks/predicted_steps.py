"""How long steps take under several strategies, run in turns by processes that go through all together."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bow.planning.problem.partition import Partition, Split
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime
from bow.replicas import OptimizerFactory
from bow.schedule import Span

WARM_UP = 1


@dataclass(frozen=True)
class Timed:
    """How long steps took under a strategy."""

    seconds: tuple[float, ...]  # of every step, from when all began to when the last was ready
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
    """Run all strategies in turns, every other turn in reverse order; of two steps in a row the second is timed.

    All processes of the group call this.
    """
    runtimes = {
        name: TileRuntime(captured, Partition(captured.graph.hash, splits), model, optimizer, group)
        for name, splits in strategies.items()
    }
    own: dict[str, list[float]] = defaultdict(list)
    for turn in range(WARM_UP + turns):
        for name in list(runtimes) if turn % 2 else reversed(runtimes):
            # The first step finds in the caches what other strategies have left, which no training does.
            for is_timed in (False, True):
                group.sum_all([torch.zeros(1)])  # all begin together
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
    """By place and category: how many milliseconds in all."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        found[span.place][span.category] += span.duration_ns / 1e6
    return {place: {name: round(ms, 3) for name, ms in sorted(of.items())} for place, of in sorted(found.items())}


def _recorded(runtime: TileRuntime, batch: Any) -> dict[str, dict[str, float]]:
    runtime.record()
    runtime.step(batch, 0)
    runtime.record(False)
    return spans_ms(runtime.timeline().spans)
