"""Test whether cells of an unrolled LSTM run along diagonals of layers and steps (Tang et al., section 7.4)."""

import bisect
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.costs.machine import Saturation
from benchmarks.manycore.executors import at_random, critical_first, first_come, taking
from benchmarks.manycore.machines import durations, team
from benchmarks.manycore.steps import Step
from bow.schedule import Span, Timeline
from bow.schedule.scheduler import OperatorScheduler
from bow.schedule.scheduler.protocol import simulate_operators

Cell: TypeAlias = tuple[int, int]  # layer and time step

CELLS = "lstm.cells."  # prefix of the modules of cells, before the number of the layer

PRODUCTS = 2  # of a cell: a matrix product each for its input and its state

CRITICAL, FIRST, RANDOM = "critical path first", "first come, first served", "any ready operator"


@dataclass(frozen=True)
class Diagonal:
    """Execution order of the cells of a forward pass."""

    correlation: float  # of a cell's start time with layer + step; 1 if diagonals run one after another
    ahead: float  # mean number of steps by which the layer below is ahead when a cell starts; 1 on a diagonal
    most_ahead: int  # the maximum of these


def cells_of(step: Step) -> dict[Cell, list[int]]:
    """Return the forward operators of each cell, its two products first.

    Example:
        >>> from benchmarks.costs.machine import Work
        >>> kinds = ["addmm.default", "addmm.default", "add.Tensor", "sigmoid.default"]
        >>> works = tuple(Work(f"aten.{kind}", 0, 0) for kind in kinds)
        >>> before = (frozenset(), frozenset(), frozenset({0, 1}), frozenset({2}))
        >>> cells_of(Step(works * 2, before * 2, ("lstm.cells.0",) * 8, (True,) * 8))
        {(0, 0): [0, 1, 2, 3], (0, 1): [4, 5, 6, 7]}
    """
    cells: dict[Cell, list[int]] = {}
    products: dict[int, int] = {}  # by layer: number of products so far
    for operator, (work, module) in enumerate(zip(step.works, step.modules, strict=True)):
        if not (step.forward[operator] and module.startswith(CELLS)):
            continue
        layer = int(module.removeprefix(CELLS))
        products[layer] = products.get(layer, 0) + (".addmm." in work.kind)
        if products[layer]:  # operators before the first cell belong to none
            cells.setdefault((layer, (products[layer] - 1) // PRODUCTS), []).append(operator)
    return cells


def cell_timeline(timeline: Timeline, cells: Mapping[Cell, Sequence[int]]) -> Timeline:
    """Timeline of the cells: a place for each layer, and a colour (the name of the spans) for each step.

    A cell starts with the later one of its products: that of its input may have run long before, during the previous
    step.
    """
    spans = {span.details["operator"]: span for span in timeline.spans}
    return Timeline(
        Span(
            f"step {moment}",
            f"layer {layer}",
            max(spans[operator].start_ns for operator in operators[:PRODUCTS]),
            max(spans[operator].end_ns for operator in operators),
        )
        for (layer, moment), operators in cells.items()
    )


def diagonal_of(begins: Mapping[Cell, int]) -> Diagonal:
    """Compute how diagonal the cells ran, from their start times.

    Example:
        >>> wave = {(layer, step): 10 * (layer + step) for layer in range(3) for step in range(5)}
        >>> diagonal_of(wave).ahead, round(diagonal_of(wave).correlation, 6)
        (0.8, 1.0)
    """
    steps = 1 + max(moment for _, moment in begins)
    ahead = []
    for (layer, moment), begin in begins.items():
        if layer:
            below = [begins[layer - 1, each] for each in range(steps)]
            ahead.append(bisect.bisect_right(below, begin) - 1 - moment)
    sums = [float(layer + moment) for layer, moment in begins]
    correlation = statistics.correlation(sums, [float(begin) for begin in begins.values()])
    return Diagonal(correlation, statistics.fmean(ahead), max(ahead))


def compare_diagonals(
    machine: Saturation, step: Step, tried: Sequence[tuple[int, int]], seeds: Sequence[int]
) -> tuple[list[dict[str, Any]], dict[tuple[int, str], Timeline]]:
    """Return the diagonals by shape and scheduler, and the timelines of the cells."""
    cells = cells_of(step)
    rows: list[dict[str, Any]] = []
    timelines: dict[tuple[int, str], Timeline] = {}
    for executors, threads in tried:
        times = durations(machine, step, team(threads))
        schedulers: list[tuple[str, OperatorScheduler]] = [
            (CRITICAL, critical_first(step, executors, times)),
            (FIRST, first_come(step, executors)),
            *((RANDOM, at_random(step, executors, seed)) for seed in seeds),
        ]
        found: dict[str, list[Diagonal]] = {}
        for name, scheduler in schedulers:
            timeline = simulate_operators(scheduler, taking(times))
            drawn = cell_timeline(timeline, cells)
            timelines.setdefault((executors, name), drawn)
            begins = {cell: span.start_ns for cell, span in zip(cells, drawn.spans, strict=True)}
            found.setdefault(name, []).append(diagonal_of(begins))
        rows += [{"executors": executors, "threads": threads, "scheduler": each, **_row(found[each])} for each in found]
    return rows, timelines


def _row(found: Sequence[Diagonal]) -> dict[str, Any]:
    """Medians, and the largest deviation from a diagonal."""
    return {
        "correlation": round(statistics.median(each.correlation for each in found), 4),
        "lowest": round(min(each.correlation for each in found), 4),
        "ahead": round(statistics.median(each.ahead for each in found), 2),
        "most_ahead": max(each.most_ahead for each in found),
    }
