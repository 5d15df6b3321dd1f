"""What a strategy has chosen for every operator, what that costs, and what other choices would cost."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bow.planning.problem.partition import Split
from bow.planning.rules.rule import Dimension, Kind
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.simulation import Simulation
from bow.planning.simulator.tasks import TaskKind

SUMS = frozenset({TaskKind.FORWARD_SUM, TaskKind.BACKWARD_SUM, TaskKind.REDUCTION})

MOVES = frozenset({TaskKind.TRANSFER, TaskKind.GRADIENT})


@dataclass(frozen=True)
class Alternative:
    """Another split of one operator."""

    operator: int
    split: Split
    makespan_ns: int | None  # what a step takes with it; None: it does not fit


@dataclass(frozen=True)
class OperatorExplanation:
    """An operator of a strategy. Times are of the slowest device."""

    name: str
    kind: str
    degrees: dict[str, int]  # by name of a dimension that is split: into how many parts
    kinds: dict[str, Kind]  # by name of a dimension that is split: S, A or P, as in the paper's Table 1
    devices: tuple[str, ...]  # the names of its tiles' devices
    forward_ns: int
    backward_ns: int
    moved_bytes: int  # of what it makes, sent to other devices, and of gradients that come back
    moving_ns: int  # what these transfers take together, as if one came after the other
    summing_ns: int  # what sums in its middle and reductions of its weights' gradients take together
    updating_ns: int
    others: tuple[Alternative, ...]  # other splits, the best of each degrees first


@dataclass(frozen=True)
class Explanation:
    """A strategy, operator by operator."""

    makespan_ns: int
    learners: int
    operators: tuple[OperatorExplanation, ...]  # in the order of the graph
    tried: int  # how many other choices were simulated
    left_out: int = 0  # of how many operators none was, because it was ended before

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        head = ("operator", "kind", "split", "devices", "forward", "backward", "moved", "summed", "update", "next best")
        rows = [head, *(self._row(each) for each in self.operators)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        total = f"{self.makespan_ns / 1e6:.3f} ms a step; times in ms; {self.tried:,} other choices simulated"
        return "\n".join([*lines, total])

    def _row(self, each: OperatorExplanation) -> tuple[str, ...]:
        times = (each.forward_ns, each.backward_ns, each.moving_ns, each.summing_ns, each.updating_ns)
        forward, backward, moving, summing, updating = (f"{time / 1e6:.3f}" for time in times)
        return (
            *(
                each.name,
                each.kind,
                degrees_text(each.degrees, each.kinds),
                _shortened(each.devices),
                forward,
                backward,
            ),
            *(moving, summing, updating, self._next_best(each)),
        )

    def _next_best(self, each: OperatorExplanation) -> str:
        fitting = [choice for choice in each.others if choice.makespan_ns is not None]
        if not fitting:
            return "-" if not each.others else "no other fits"
        best = fitting[0]
        assert best.makespan_ns is not None
        by = 100 * (best.makespan_ns / self.makespan_ns - 1)
        return f"{'x'.join(map(str, best.split.degrees)) or 'whole'} {by:+.1f} %"


def explain(
    problem: Problem,
    splits: Sequence[Split],
    learners: int = 1,
    *,
    space: SplitSpace | None = None,
    operators: Collection[int] | None = None,
    keep: int = 3,
    goes_on: Callable[[], bool] = lambda: True,
) -> Explanation:
    """Say what was chosen for every operator, and simulate what else could have been."""
    simulation = problem.simulation(splits, learners)
    if space is None:
        space = SplitSpace(problem.graph, problem.rules, problem.topology.num_devices // learners)
    spent, makespan_ns = _Spent(simulation.result(), len(splits)), simulation.makespan_ns
    wanted = range(len(splits)) if operators is None else operators
    tried, left_out, rows = 0, 0, []
    for number, split in enumerate(splits):
        choices: list[Alternative] = []
        is_tried = number in wanted and not left_out and goes_on()
        try:
            choices += _choices(simulation, space, number, split) if is_tried else ()
        except KeyboardInterrupt:
            is_tried = False
        left_out += number in wanted and not is_tried
        tried += len(choices)
        rows.append(_explained(problem, number, split, spent, _best(choices, keep)))
    return Explanation(makespan_ns, learners, tuple(rows), tried, left_out)


def _choices(simulation: Simulation, space: SplitSpace, number: int, split: Split) -> Iterator[Alternative]:
    """All other splits of an operator."""
    for other in space.splits(number):
        if other != split:
            makespan_ns = simulation.propose_changes({number: other})
            simulation.undo()
            yield Alternative(number, other, makespan_ns)


def _best(choices: Iterable[Alternative], keep: int) -> tuple[Alternative, ...]:
    """The best choice of each degrees, the best of them first; those that do not fit come last."""

    def time(choice: Alternative) -> tuple[bool, int]:
        return choice.makespan_ns is None, choice.makespan_ns or 0

    best: dict[tuple[int, ...], Alternative] = {}
    for choice in sorted(choices, key=time):
        best.setdefault(choice.split.degrees, choice)
    return tuple(best.values())[:keep]


class _Spent:
    """What a simulated step spends on each operator of the first learner."""

    def __init__(self, result: SimulationResult, operators: int) -> None:
        model = result.model
        self._by_device: dict[tuple[int, TaskKind], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._in_all: dict[tuple[int, TaskKind], int] = defaultdict(int)
        self._bytes: dict[int, int] = defaultdict(int)
        for task in result.tasks:
            if task.kind >= TaskKind.GATHER:
                of_group = task.kind is not TaskKind.AVERAGING and task.owner < len(model.weight_groups)
                owner = model.weight_groups[task.owner].readers[0] if of_group else operators
            else:
                owner = task.owner
            if owner < operators:
                self._by_device[owner, task.kind][task.device] += task.duration_ns
                self._in_all[owner, task.kind] += task.duration_ns
                self._bytes[owner] += task.num_bytes if task.kind in MOVES else 0

    def slowest_ns(self, operator: int, kind: TaskKind) -> int:
        return max(self._by_device[operator, kind].values(), default=0)

    def together_ns(self, operator: int, kinds: Iterable[TaskKind]) -> int:
        return sum(self._in_all[operator, kind] for kind in kinds)

    def num_bytes(self, operator: int) -> int:
        return self._bytes[operator]


def _explained(
    problem: Problem, number: int, split: Split, spent: _Spent, others: tuple[Alternative, ...]
) -> OperatorExplanation:
    operator = problem.graph.operators[number]
    dimensions = problem.rules.dimensions(operator, problem.graph)
    degrees, kinds = split_dimensions(dimensions, split)
    return OperatorExplanation(
        operator.name,
        operator.kind,
        degrees,
        kinds,
        tuple(problem.topology.devices[device].name for device in split.devices),
        spent.slowest_ns(number, TaskKind.FORWARD),
        spent.slowest_ns(number, TaskKind.BACKWARD),
        spent.num_bytes(number),
        spent.together_ns(number, MOVES),
        spent.together_ns(number, SUMS),
        spent.slowest_ns(number, TaskKind.UPDATE),
        others,
    )


def split_dimensions(dimensions: Sequence[Dimension], split: Split) -> tuple[dict[str, int], dict[str, Kind]]:
    """By name of a dimension that is split: into how many parts, and of which kind it is."""
    pairs = [(each, degree) for each, degree in zip(dimensions, split.degrees, strict=True) if degree > 1]
    return {each.name: degree for each, degree in pairs}, {each.name: each.kind for each, _ in pairs if each.kind}


def degrees_text(degrees: Mapping[str, int], kinds: Mapping[str, Kind]) -> str:
    """Into how many parts dimensions are split."""
    return ", ".join(f"{name} ({kinds[name]}) {degree}" for name, degree in degrees.items()) or "whole"


def _shortened(devices: Sequence[str]) -> str:
    """A list of devices, of many the first and the last."""
    if len(devices) <= 4:
        return " ".join(devices)
    return f"{devices[0]} {devices[1]} .. {devices[-1]} ({len(devices)})"
