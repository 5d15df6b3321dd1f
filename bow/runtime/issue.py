"""What a step graph comes to on streams: the order of issue, the memory behind its values, TensorFlow's schedule."""

import itertools
from collections.abc import Collection, Sequence

from bow.graph import Operator, StepGraph
from bow.graph.kinds import is_update
from bow.runtime.local import Dependencies, in_turn
from bow.schedule import Schedule
from bow.schedule.scheduler import ListScheduler, Recorder, Start
from bow.schedule.scheduler.levels import followers
from bow.schedule.scheduler.stream_placement import place_branches
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

    Example:
        >>> issue_order(Schedule((1, 1), priority=(6, 5, 2, 1)), [*map(frozenset, [(), (0,), (0,), (1, 2)])])
        [(0, 0), (0, 1), (1, 2), (0, 3)]

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.3.
    """
    if schedule.order is not None:
        return _as_ordered(schedule, dependencies)
    return _in_simulated_time(schedule, dependencies, free)


def costs_behind(levels: Sequence[int], dependencies: Dependencies) -> list[int]:
    """What operators take, from the longest time that is left at the start of each: `level - max(levels of followers)`.

    Numbers that are no levels say nothing of times: then all operators take 1.

    Example:
        >>> costs_behind([6, 5, 2, 1], [*map(frozenset, [(), (0,), (0,), (1, 2)])])
        [1, 4, 1, 1]
        >>> costs_behind([1, 2], [*map(frozenset, [(), (0,)])])
        [1, 1]
    """
    following = followers(dependencies)
    costs = [
        level - max((levels[later] for later in following[index]), default=0) for index, level in enumerate(levels)
    ]
    return costs if min(costs, default=0) >= 0 and any(costs) else [1] * len(levels)


def _in_simulated_time(schedule: Schedule, dependencies: Dependencies, free: Collection[int]) -> list[tuple[int, int]]:
    """Streams by list scheduling; operators that start at the same moment in the order in which they are given out."""
    levels = schedule.priority
    costs = [1] * len(dependencies) if levels is None else costs_behind(levels, dependencies)
    recorder = Recorder(ListScheduler(dependencies, len(schedule.threads), levels, schedule.stay, small=schedule.small))

    def duration(start: Start) -> int:
        return 0 if start.operator in free else costs[start.operator]

    simulate_operators(recorder, duration)
    return [(turn.executor, turn.operator) for turn in recorder.turns]


def _as_ordered(schedule: Schedule, dependencies: Dependencies) -> list[tuple[int, int]]:
    lanes, waits = schedule.on_executors()
    stream_of = {index: stream for stream, lane in enumerate(lanes) for index in lane}
    before = [others.union(waits.get(index, ())) for index, others in enumerate(map(set, dependencies))]
    for lane in lanes:
        for earlier, later in itertools.pairwise(lane):
            before[later].add(earlier)
    lowest_first = Schedule((1,), priority=tuple(-index for index in range(len(before))))
    return [(stream_of[index], index) for _, index in in_turn(lowest_first, [frozenset(others) for others in before])]


class MemoryUse:
    """Which values lie in the same memory, and which operators use it.

    A view is no use: the device has nothing to do for it. Capture has taken operators apart that are only sometimes
    views, such as `reshape`, so those that are left always are, of the first value that they read.

    Attributes:
        aliases: by value that is no view: itself and its views.
        uses: by such a value that an operator makes and no result lies in: the operators that use it, its maker first.
        views_of: by operator: the views of what it makes, in the order of capture.
        views_of_inputs: the views of what comes from outside.
    """

    def __init__(self, graph: StepGraph, operators: Sequence[Operator]) -> None:
        self._kernels = [operator for operator in operators if not operator.is_view]
        self._maker = {value: op.index for op in self._kernels for value in op.results if value is not None}
        self._viewed: dict[int, int] = {}
        self.views_of: dict[int, list[Operator]] = {operator.index: [] for operator in self._kernels}
        self.views_of_inputs: list[Operator] = []
        for view in operators:
            if view.is_view:
                source = self._root(view.reads[0])
                self._viewed.update({value: source for value in view.results if value is not None})
                (self.views_of[self._maker[source]] if source in self._maker else self.views_of_inputs).append(view)
        self.aliases: dict[int, list[int]] = {value: [value] for value in self._maker}
        for value, source in self._viewed.items():
            self.aliases.setdefault(source, [source]).append(value)
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


def branch_schedule(graph: StepGraph, num_streams: int) -> Schedule:
    """What TensorFlow's placement makes of a step graph: operators by `place_branches`, in the order of capture.

    Parameters, buffers, the tensors of the batch and constants are nodes without inputs, as they are in TensorFlow,
    right in front of the first operator that reads them. A view is no node: it lies where what it looks at lies.

    References:
        Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019, section 4.1.1.
    """
    inputs: list[list[int]] = []  # by node
    node_of_value: dict[int, int] = {}
    node_of_operator: list[int] = []
    for operator in operators_of(graph):
        for value in operator.reads:
            if value not in node_of_value:
                node_of_value[value] = len(inputs)
                inputs.append([])
        if operator.is_view:
            node = node_of_value[operator.reads[0]]
        else:
            node = len(inputs)
            inputs.append([node_of_value[value] for value in operator.reads])
        node_of_value.update({value: node for value in operator.results if value is not None})
        node_of_operator.append(node)
    placed = place_branches(inputs, num_streams)
    lanes: list[list[int]] = [[] for _ in range(num_streams)]
    for index, node in enumerate(node_of_operator):
        lanes[placed[node]].append(index)
    return Schedule((1,) * num_streams, order=tuple(tuple(lane) for lane in lanes))
