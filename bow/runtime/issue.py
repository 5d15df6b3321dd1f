"""What a step graph comes to on streams: the order of issue, and the memory behind its values."""

import itertools
from collections.abc import Collection, Sequence

from bow.graph import Operator, StepGraph
from bow.graph.kinds import is_update
from bow.runtime.local import Dependencies, in_turn
from bow.schedule import DynamicSchedule, OrderedSchedule, PrioritySchedule, Schedule
from bow.schedule.scheduler import DecisionRecorder, ListScheduler, Start
from bow.schedule.scheduler.dependencies import followers
from bow.schedule.simulator import simulate_operators


def operators_of(graph: StepGraph) -> list[Operator]:
    """What a runtime runs: all operators but the updates."""
    return [operator for operator in graph.operators if not is_update(operator.kind)]


def issue_order(schedule: Schedule, dependencies: Dependencies, free: Collection[int] = ()) -> list[tuple[int, int]]:
    """The order in which the host issues operators: (stream, operator).

    Of a schedule with an order it is that of capture, as far as the order on every stream lets it. Priorities, or
    nothing, leave the streams open: they are chosen by list scheduling in simulated time, and the host issues operators
    in the order in which they start there. With the levels of a critical path as priorities this is Graphi's schedule,
    critical path first; what operators take is then known from their levels (`costs_behind`). Where nothing is known,
    all are taken to last equally long.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.3.
    """
    if isinstance(schedule, OrderedSchedule):
        return _as_ordered(schedule, dependencies)
    assert isinstance(schedule, DynamicSchedule)
    return _in_simulated_time(schedule, dependencies, free)


def costs_behind(levels: Sequence[int], dependencies: Dependencies) -> list[int]:
    """What operators take, from the longest time that is left at the start of each: `level - max(levels of followers)`.

    Numbers that are no levels say nothing of times: then all operators take 1.
    """
    following = followers(dependencies)
    costs = [
        level - max((levels[later] for later in following[index]), default=0) for index, level in enumerate(levels)
    ]
    return costs if min(costs, default=0) >= 0 and any(costs) else [1] * len(levels)


def _in_simulated_time(
    schedule: DynamicSchedule, dependencies: Dependencies, free: Collection[int]
) -> list[tuple[int, int]]:
    """Streams by list scheduling; operators that start at the same moment in the order in which they are given out."""
    levels = schedule.priority if isinstance(schedule, PrioritySchedule) else None
    costs = [1] * len(dependencies) if levels is None else costs_behind(levels, dependencies)
    scheduler = ListScheduler(dependencies, len(schedule.threads), levels, schedule.stay, small=schedule.small)
    recorder = DecisionRecorder(scheduler)

    def duration(start: Start) -> int:
        return 0 if start.operator in free else costs[start.operator]

    simulate_operators(recorder, duration)
    return [(start.executor, start.operator) for start in recorder.decisions]


def _as_ordered(schedule: OrderedSchedule, dependencies: Dependencies) -> list[tuple[int, int]]:
    orders, waits = schedule.on_executors()
    stream_of = {index: stream for stream, own in enumerate(orders) for index in own}
    before = [others.union(waits.get(index, ())) for index, others in enumerate(map(set, dependencies))]
    for own in orders:
        for earlier, later in itertools.pairwise(own):
            before[later].add(earlier)
    lowest_first = PrioritySchedule((1,), tuple(-index for index in range(len(before))))
    return [(stream_of[index], index) for _, index in in_turn(lowest_first, [frozenset(others) for others in before])]


class MemoryUse:
    """Which values lie in the same memory, and which operators use it.

    A view is no use: the device has nothing to do for it. Capture has taken operators apart that are only sometimes
    views, such as `reshape`, so those that are left always are, of the first value that they read.
    """

    def __init__(self, graph: StepGraph, operators: Sequence[Operator]) -> None:
        self._kernels = [operator for operator in operators if not operator.is_view]
        self._maker = {value: op.index for op in self._kernels for value in op.results if value is not None}
        self._viewed: dict[int, int] = {}
        # By operator: the views of what it makes, in the order of capture; and those of what comes from outside.
        self.views_of: dict[int, list[Operator]] = {operator.index: [] for operator in self._kernels}
        self.views_of_inputs: list[Operator] = []
        for view in operators:
            if view.is_view:
                source = self._root(view.reads[0])
                self._viewed.update({value: source for value in view.results if value is not None})
                (self.views_of[self._maker[source]] if source in self._maker else self.views_of_inputs).append(view)
        # By value that is no view: itself and its views.
        self.aliases: dict[int, list[int]] = {value: [value] for value in self._maker}
        for value, source in self._viewed.items():
            self.aliases.setdefault(source, [source]).append(value)
        # By such a value that an operator makes and no result lies in: the operators that use it, its maker first.
        self.uses = {
            value: [maker] for value, maker in self._maker.items() if graph.results.isdisjoint(self.aliases[value])
        }
        for operator in self._kernels:
            for value in {self._root(value) for value in operator.reads} & self.uses.keys():
                self.uses[value].append(operator.index)

    def dependencies(self) -> dict[int, set[int]]:
        """By operator that is no view: those that make what it reads, directly or through views."""
        return {
            operator.index: {self._maker[root] for root in map(self._root, operator.reads) if root in self._maker}
            for operator in self._kernels
        }

    def _root(self, value: int) -> int:
        return self._viewed.get(value, value)
