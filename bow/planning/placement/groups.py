"""Groups of operators that are placed together, as plain data."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import prod
from typing import TypeAlias

from bow.errors import GraphError, ScheduleError
from bow.planning.placement.policy import Operations
from bow.planning.problem.operator_graph import OperatorGraph, TensorShape
from bow.planning.problem.partition import Partition, Split, whole_on

Devices: TypeAlias = tuple[int, ...]  # A placement: by group, the number of its device


@dataclass(frozen=True)
class Group:
    """Operators that share a device, with their backward passes and the updates of their weights."""

    name: str  # that no other group has
    kind: str  # what it is, such as `lstm_cell` or `branch`
    operators: tuple[int, ...]  # their positions in the graph, ascending
    layer: str = ""  # what groups have in common that use the same weights, such as the steps of an unrolled LSTM layer


@dataclass(frozen=True)
class Flow:
    """What one group reads of another."""

    maker: int  # the number of the group that makes it
    reader: int  # the number of the group that reads it
    forward_bytes: int  # of all tensors, each once
    backward_bytes: int  # of their gradients, which go back

    @property
    def num_bytes(self) -> int:
        """What crosses in both directions."""
        return self.forward_bytes + self.backward_bytes


@dataclass(frozen=True)
class GroupStatistics:
    """What a graph's groups amount to."""

    operators: int  # how many there are in the graph: forward ones, each with its backward pass and update
    groups: int  # how many there are
    kinds: Mapping[str, int]  # how many groups of each kind
    flows: int  # pairs of groups of which one reads what the other makes
    flow_bytes: int  # what crosses between groups in a step, if each had a device of its own
    largest: int  # operators of the largest group


@dataclass(frozen=True)
class Groups:
    """All operators of a graph, each in one group."""

    # A group's operator brings its backward pass and the update of its weights with it: they are parts of one operator
    # of the graph. So forward, backward and update are on one device whatever the groups are.
    # The groups may depend on each other in a circle: operators, not groups, are simulated and run. Only what goes
    # through groups in an order in which they can run needs groups without circles, and asks for `order`.

    graph: OperatorGraph  # whose operators they are
    groups: tuple[Group, ...]  # by number

    def __post_init__(self) -> None:
        held = Counter(operator for group in self.groups for operator in group.operators)
        count = len(self.graph.operators)
        wrong = next((number for number in {*range(count), *held} if held[number] != (0 <= number < count)), None)
        if wrong is not None:
            raise GraphError(f"operator {wrong} is not in exactly one group; put every operator of the graph into one")
        names = Counter(group.name for group in self.groups)
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise GraphError(f"two groups are called {twice!r}; give every group a name of its own")

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self.groups)

    @cached_property
    def of(self) -> tuple[int, ...]:
        """By operator: the number of its group."""
        found = {operator: number for number, group in enumerate(self.groups) for operator in group.operators}
        return tuple(found[operator] for operator in range(len(found)))

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """What crosses between groups, in the order of the makers; a tensor once for each group that reads it."""
        makers, crossing = self.graph.makers, defaultdict[tuple[int, int], set[int]](set)
        for number, operator in enumerate(self.graph.operators):
            for tensor in operator.inputs:
                maker = self.of[makers[tensor]] if tensor in makers else self.of[number]
                if maker != self.of[number]:
                    crossing[maker, self.of[number]].add(tensor)
        return tuple(
            self._flow(*pair, [self.graph.tensors[each] for each in crossing[pair]]) for pair in sorted(crossing)
        )

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The groups' numbers in an order in which they can run: of those that can, the one with the first operator."""
        order = _order(self)
        if len(order) < len(self):
            held = next(group.name for number, group in enumerate(self.groups) if number not in set(order))
            raise GraphError(f"groups depend on each other in a circle, {held!r} among them; take smaller groups")
        return order

    @property
    def is_acyclic(self) -> bool:
        """Whether there is an order in which whole groups can run one after another."""
        return len(_order(self)) == len(self)

    @property
    def statistics(self) -> GroupStatistics:
        """What the groups amount to."""
        return GroupStatistics(
            len(self.graph.operators),
            len(self),
            dict(sorted(Counter(group.kind for group in self.groups).items())),
            len(self.flows),
            sum(flow.num_bytes for flow in self.flows),
            max((len(group.operators) for group in self.groups), default=0),
        )

    def shapes(self, group: int) -> tuple[tuple[int, ...], ...]:
        """The sizes of what a group makes that others read; of the loss where nobody reads anything."""
        own = self.groups[group].operators
        read = {tensor for n, each in enumerate(self.graph.operators) if self.of[n] != group for tensor in each.inputs}
        made = [tensor for operator in own for tensor in self.graph.operators[operator].outputs]
        leaving = [tensor for tensor in made if tensor in read] or made[-1:]
        return tuple(self.graph.tensors[tensor].shape for tensor in leaving)

    def operations(self, num_devices: int, allowed: Sequence[Sequence[int]] = ()) -> Operations:
        """The groups as a policy reads them."""
        return Operations(
            tuple(group.kind for group in self.groups),
            tuple(map(self.shapes, range(len(self)))),
            tuple((flow.maker, flow.reader) for flow in self.flows),
            num_devices,
            tuple(tuple(devices) for devices in allowed),
        )

    def splits(self, devices: Sequence[int]) -> tuple[Split, ...]:
        """A placement as splits of all degrees 1, by operator."""
        if len(devices) != len(self):
            raise ScheduleError(f"the placement has {len(devices)} devices for {len(self)} groups; give each one")
        return tuple(
            whole_on(self.graph, operator, devices[group])
            for operator, group in zip(self.graph.operators, self.of, strict=True)
        )

    def partition(self, devices: Sequence[int]) -> Partition:
        """A placement as a partition, as search and runtime read it."""
        return Partition(self.graph.hash, self.splits(devices))

    def with_kinds(self, kinds: Collection[str]) -> tuple[bool, ...]:
        """By group: whether it has an operator of one of these kinds."""
        return tuple(any(self.graph.operators[n].kind in kinds for n in group.operators) for group in self.groups)

    @staticmethod
    def _flow(maker: int, reader: int, tensors: Collection[TensorShape]) -> Flow:
        sizes = [prod(tensor.shape) * tensor.itemsize for tensor in tensors]
        back = sum(size for size, tensor in zip(sizes, tensors, strict=True) if tensor.differentiable)
        return Flow(maker, reader, sum(sizes), back)


def _order(groups: Groups) -> tuple[int, ...]:
    """As many groups as can run one after another."""
    waiting, readers = [0] * len(groups), defaultdict[int, list[int]](list)
    for flow in groups.flows:
        waiting[flow.reader] += 1
        readers[flow.maker].append(flow.reader)
    first = [group.operators[0] for group in groups.groups]
    ready = [(first[number], number) for number, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        _, number = heappop(ready)
        order.append(number)
        for reader in readers[number]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, (first[reader], reader))
    return tuple(order)
