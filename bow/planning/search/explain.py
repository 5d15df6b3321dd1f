"""Explain a partition: each operator's split, its cost, and the cost of alternatives."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bow.planning.problem.partition import Split
from bow.planning.rules.rule import Dimension
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.simulation import Simulation
from bow.planning.simulator.step_model import TaskKind
from bow.terminal import aligned

SUMS = frozenset({TaskKind.FORWARD_SUM, TaskKind.BACKWARD_SUM, TaskKind.REDUCTION})
MOVES = frozenset({TaskKind.TRANSFER, TaskKind.GRADIENT})
COLUMNS = ("operator", "kind", "split", "devices", "forward", "backward", "moved", "summed", "update")


@dataclass(frozen=True)
class Alternative:
    """An alternative split of one operator."""

    operator: int
    split: Split
    makespan_ns: int | None  # step time with it; None: it does not fit


@dataclass(frozen=True)
class OperatorExplanation:
    """An operator of a partition. Times are those of the slowest device."""

    name: str
    kind: str
    dimensions: tuple[Dimension, ...]
    split: Split
    devices: tuple[str, ...]  # names, by tile
    forward_ns: int
    backward_ns: int
    moved_bytes: int  # its outputs sent to other devices, and their gradients sent back
    moving_ns: int  # sum over these transfers
    summing_ns: int  # sum over its collectives and its weights' gradient reductions
    updating_ns: int
    alternatives: tuple[Alternative, ...]  # best alternative for each degrees, fastest first

    def split_text(self, split: Split) -> str:
        pairs = zip(self.dimensions, split.degrees, strict=True)
        return ", ".join(f"{each.name} ({each.kind}) {degree}" for each, degree in pairs if degree > 1) or "whole"

    def cells(self) -> tuple[str, ...]:
        times = (self.forward_ns, self.backward_ns, self.moving_ns, self.summing_ns, self.updating_ns)
        what = self.name, self.kind, self.split_text(self.split), shortened(self.devices)
        return (*what, *(f"{time / 1e6:.3f}" if time else "" for time in times))


@dataclass(frozen=True)
class Explanation:
    """A partition, operator by operator; prints as a table."""

    makespan_ns: int
    learners: int
    operators: tuple[OperatorExplanation, ...]  # in the order of the graph
    tried: int  # number of alternatives simulated
    left_out: int = 0  # number of operators without alternatives because the budget was spent or Ctrl-C pressed

    def __str__(self) -> str:
        rows = [(*each.cells(), self._next_best(each)) for each in self.operators]
        total = f"{self.makespan_ns / 1e6:.3f} ms a step; times in ms; {self.tried:,} alternatives simulated"
        return "\n".join([*aligned([(*COLUMNS, "next best"), *rows]), total])

    def _next_best(self, each: OperatorExplanation) -> str:
        if not each.alternatives:
            return "-"
        best = each.alternatives[0]  # those that do not fit come last
        if best.makespan_ns is None:
            return "no alternative fits"
        return f"{'x'.join(map(str, best.split.degrees)) or 'whole'} {self.slower(best.makespan_ns):+.1f} %"

    def slower(self, makespan_ns: int) -> float:
        """Return by how many percent a step is slower."""
        return 100 * (makespan_ns / self.makespan_ns - 1)


def explain(
    problem: Problem,
    splits: Sequence[Split],
    learners: int = 1,
    *,
    space: SplitSpace | None = None,
    operators: Collection[int] | None = None,
    keep: int = 3,
    budget_s: float | None = None,
) -> Explanation:
    begun = time.perf_counter()
    simulation = problem.simulation(splits, learners)
    if space is None:
        space = SplitSpace(problem.graph, problem.rules, problem.topology.num_devices // learners)
    spent, makespan_ns = _OperatorCosts(problem.simulate(splits, learners), len(splits)), simulation.makespan_ns
    wanted = range(len(splits)) if operators is None else operators
    tried, left_out, rows = 0, 0, []
    for number, split in enumerate(splits):
        choices: list[Alternative] = []
        has_time = budget_s is None or time.perf_counter() - begun < budget_s
        is_tried = number in wanted and not left_out and has_time
        try:
            choices += _choices(simulation, space, number, split) if is_tried else ()
        except KeyboardInterrupt:
            is_tried = False
        left_out += number in wanted and not is_tried
        tried += len(choices)
        rows.append(_explained(problem, number, split, spent, _best(choices, keep)))
    return Explanation(makespan_ns, learners, tuple(rows), tried, left_out)


def _choices(simulation: Simulation, space: SplitSpace, number: int, split: Split) -> Iterator[Alternative]:
    for other in space.splits(number):
        if other != split:
            makespan_ns = simulation.propose_changes({number: other})
            simulation.undo()
            yield Alternative(number, other, makespan_ns)


def _best(choices: Iterable[Alternative], keep: int) -> tuple[Alternative, ...]:
    """Return the best alternative for each degrees, fastest first; those that do not fit come last."""

    def rank(choice: Alternative) -> tuple[bool, int]:
        return choice.makespan_ns is None, choice.makespan_ns or 0

    best: dict[tuple[int, ...], Alternative] = {}
    for choice in sorted(choices, key=rank):
        best.setdefault(choice.split.degrees, choice)
    return tuple(best.values())[:keep]


class _OperatorCosts:
    """Time and bytes of a simulated step by operator; those of the first learner only."""

    def __init__(self, result: SimulationResult, operators: int) -> None:
        model = result.model
        self._by_device: dict[tuple[int, TaskKind], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._in_all: dict[tuple[int, TaskKind], int] = defaultdict(int)
        self.num_bytes: dict[int, int] = defaultdict(int)
        for task in result.tasks:
            if task.kind >= TaskKind.GATHER:
                of_group = task.kind is not TaskKind.AVERAGING and task.owner < len(model.weight_groups)
                owner = model.weight_groups[task.owner].readers[0] if of_group else operators
            else:
                owner = task.owner
            if owner < operators:
                self._by_device[owner, task.kind][task.device] += task.duration_ns
                self._in_all[owner, task.kind] += task.duration_ns
                self.num_bytes[owner] += task.num_bytes if task.kind in MOVES else 0

    def slowest_ns(self, operator: int, kind: TaskKind) -> int:
        return max(self._by_device[operator, kind].values(), default=0)

    def together_ns(self, operator: int, kinds: Iterable[TaskKind]) -> int:
        return sum(self._in_all[operator, kind] for kind in kinds)


def _explained(
    problem: Problem, number: int, split: Split, spent: _OperatorCosts, alternatives: tuple[Alternative, ...]
) -> OperatorExplanation:
    operator = problem.graph.operators[number]
    return OperatorExplanation(
        operator.name,
        operator.kind,
        problem.rules.dimensions(operator, problem.graph),
        split,
        tuple(problem.topology.devices[device].name for device in split.devices),
        spent.slowest_ns(number, TaskKind.FORWARD),
        spent.slowest_ns(number, TaskKind.BACKWARD),
        spent.num_bytes[number],
        spent.together_ns(number, MOVES),
        spent.together_ns(number, SUMS),
        spent.slowest_ns(number, TaskKind.UPDATE),
        alternatives,
    )


def shortened(devices: Sequence[str]) -> str:
    """Join device names; of more than four only the first two and the last."""
    if len(devices) <= 4:
        return " ".join(devices)
    return f"{devices[0]} {devices[1]} .. {devices[-1]} ({len(devices)})"
