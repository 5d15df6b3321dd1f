"""What a step graph comes to on streams: the order of issue, the memory behind its values, TensorFlow's schedule."""

import itertools
from collections.abc import Sequence

from bow.graph import Operator, StepGraph
from bow.graph.kinds import is_update
from bow.runtime.local import Dependencies, in_turn
from bow.scheduler.stream_placement import place_branches
from bow.strategy import Schedule


def operators_of(graph: StepGraph) -> list[Operator]:
    """What a runtime runs: all operators but the updates."""
    return [operator for operator in graph.operators if not is_update(operator.kind)]


def issue_order(schedule: Schedule, dependencies: Dependencies) -> list[tuple[int, int]]:
    """The order in which the host issues operators: (stream, operator).

    It is that of capture, as far as the order on every stream lets it.

    Args:
        schedule: one that fits the dependencies.
        dependencies: by operator.
    """
    if schedule.order is None:
        return in_turn(schedule, dependencies)
    stream_of = {index: stream for stream, lane in enumerate(schedule.order) for index in lane}
    before = [set(others) for others in dependencies]
    for lane in schedule.order:
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

    Args:
        graph: a step graph.
        num_streams: how many streams there are.

    Raises:
        ScheduleError: there is no stream.

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
