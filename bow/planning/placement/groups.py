"""Groups of operators that are placed together: sole readers are followed, modules of a network kept together."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TypeAlias

from bow.errors import GraphError, ScheduleError
from bow.planning.placement.policy import Operations
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.partition import Split, whole_on
from bow.planning.search.proposals import Joined

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
                maker = self.of[makers[tensor][0]] if tensor in makers else self.of[number]
                if maker != self.of[number]:
                    crossing[maker, self.of[number]].add(tensor)
        flows = ((pair, [self.graph.tensors[each] for each in crossing[pair]]) for pair in sorted(crossing))
        return tuple(
            Flow(*pair, sum(each.num_bytes for each in of), sum(each.num_bytes for each in of if each.differentiable))
            for pair, of in flows
        )

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The groups' numbers in an order in which they can run: of those that can, the one with the first operator."""
        makers: dict[int, set[int]] = {number: set() for number in range(len(self))}
        for flow in self.flows:
            makers[flow.reader].add(flow.maker)
        sorter, order, ready = TopologicalSorter(makers), [], list[tuple[int, int]]()
        try:
            sorter.prepare()
        except CycleError as error:
            held = self.groups[error.args[1][0]].name
            raise GraphError(
                f"groups depend on each other in a circle, {held!r} among them; take smaller groups"
            ) from error
        while sorter.is_active():
            for number in sorter.get_ready():
                heappush(ready, (self.groups[number].operators[0], number))
            order.append(heappop(ready)[1])
            sorter.done(order[-1])
        return tuple(order)

    def shapes(self, group: int) -> tuple[tuple[int, ...], ...]:
        """The sizes of what a group makes that others read; of the loss where nobody reads anything."""
        own = self.groups[group].operators
        read = {tensor for n, each in enumerate(self.graph.operators) if self.of[n] != group for tensor in each.inputs}
        made = [tensor for operator in own for tensor in self.graph.operators[operator].outputs]
        leaving = [tensor for tensor in made if tensor in read] or made[-1:]
        return tuple(self.graph.tensors[tensor].shape for tensor in leaving)

    def operations(self, num_devices: int) -> Operations:
        """The groups as a policy reads them."""
        return Operations(
            tuple(group.kind for group in self.groups),
            tuple(map(self.shapes, range(len(self)))),
            tuple((flow.maker, flow.reader) for flow in self.flows),
            num_devices,
        )

    def splits(self, devices: Sequence[int]) -> tuple[Split, ...]:
        if len(devices) != len(self):
            raise ScheduleError(f"the placement has {len(devices)} devices for {len(self)} groups; give each one")
        return tuple(
            whole_on(self.graph, operator, devices[group])
            for operator, group in zip(self.graph.operators, self.of, strict=True)
        )

    def with_kinds(self, kinds: Collection[str]) -> tuple[bool, ...]:
        """By group: whether it has an operator of one of these kinds."""
        return tuple(any(self.graph.operators[n].kind in kinds for n in group.operators) for group in self.groups)


NORMS = frozenset({"batch_norm", "frozen_batch_norm", "layer_norm"})
"""Kinds with weights that follow another operator wherever it goes."""

ROLES: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention", "attention.*", "mix"),
    "softmax": ("output",),
}  # by role: patterns of the names of operators of which each call is a group: a step of attention, a prediction

_CALL = re.compile(r"(.*?)(?:@(\d+))?")

Anchored: TypeAlias = Callable[[Group], bool]  # Whether a group is one that stays apart from others of its sort


def merge_sole_readers(groups: Groups, is_anchored: Anchored | None = None) -> Groups:
    """Put groups that only one other group reads with that one, again and again until nothing changes."""
    # Unless both are anchored: else all would end in one group, since the last one reads the one before alone. No
    # circle arises: a way from the joined group back into it would have to leave X for something other than Y.
    graph = groups.graph
    is_anchored = is_anchored or _has_weights(graph)
    anchored = [is_anchored(group) for group in groups.groups]
    joined = Joined(len(groups))
    readers = defaultdict[int, set[int]](set)
    for flow in groups.flows:
        readers[flow.maker].add(flow.reader)
    is_changed = True
    while is_changed:
        is_changed = False
        for number in range(len(groups)):
            own = joined.root(number)
            others = {joined.root(reader) for reader in readers[own]} - {own}
            if own != number or len(others) != 1:
                continue
            (other,) = others
            if anchored[own] and anchored[other]:
                continue
            joined.join(own, other)
            readers[other] |= readers.pop(own)
            anchored[other] = anchored[other] or anchored[own]
            is_changed = True
    return _sorted(
        graph,
        [_united(graph, [groups.groups[n] for n in members], is_anchored) for members in joined.members().values()],
    )


def module_groups(graph: OperatorGraph) -> Groups:
    """The groups of the paper: LSTM cells, embeddings, attention and softmax steps, and branches."""
    keys: dict[int, tuple[str, str]] = {**_branches(graph), **_calls(graph)}
    for number, operator in enumerate(graph.operators):
        if operator.kind in ("lstm_cell", "embedding"):
            keys[number] = operator.kind, operator.name
    members = defaultdict[tuple[str, str], list[int]](list)
    for number, operator in enumerate(graph.operators):
        members[keys.get(number, ("", operator.name))].append(number)
    modules = [
        replace(_group(graph, numbers), kind=kind, name=name) if kind else _group(graph, numbers)
        for (kind, name), numbers in members.items()
    ]
    apart, has_weights = {name for _, name in keys.values()}, _has_weights(graph)
    return merge_sole_readers(_sorted(graph, modules), lambda group: group.name in apart or has_weights(group))


def _branches(graph: OperatorGraph) -> dict[int, tuple[str, str]]:
    """By operator within a branch: the branch, with its module's path and its number in it."""
    paths = {each.name.rpartition(".")[0] for each in graph.operators if each.kind == "concat"} - {""}
    outer = {path for path in paths if not any(path.startswith(f"{other}.") for other in paths)}
    found = {}
    for number, operator in enumerate(graph.operators):
        path = next((path for path in outer if operator.name.startswith(f"{path}.")), None)
        branch = re.split(r"[.@]", operator.name[len(path) + 1 :])[0] if path is not None else ""
        if branch.isdigit():
            found[number] = "branch", f"{path}.{branch}"
    return found


def _calls(graph: OperatorGraph) -> dict[int, tuple[str, str]]:
    """By operator of a role: its call; what runs once for all, such as the keys of attention, is one of its own."""
    found: dict[int, tuple[str, str]] = {}
    base = [_base(operator) for operator in graph.operators]
    for role, patterns in ROLES.items():
        own = {n: name for n, (name, _) in enumerate(base) if any(fnmatchcase(name, pattern) for pattern in patterns)}
        counts = Counter(own.values())
        calls = max((counts[name] for n, name in own.items() if graph.operators[n].weights), default=0)
        for number, name in own.items():
            each, rest = divmod(counts[name], calls) if calls else (0, 1)
            call = name if rest else f"{role}@{base[number][1] // each}"
            found[number] = role, call
    return found


def _base(operator: PlanOperator) -> tuple[str, int]:
    """What an operator is called without the number of its call, and that number."""
    match = _CALL.fullmatch(operator.name)
    assert match is not None
    return match[1], int(match[2] or 0)


def _has_weights(graph: OperatorGraph) -> Anchored:
    operators = graph.operators
    return lambda group: any(operators[n].weights and operators[n].kind not in NORMS for n in group.operators)


def _sorted(graph: OperatorGraph, groups: Sequence[Group]) -> Groups:
    """In an order in which they can run where there is one, else by their first operators."""
    by_first = Groups(graph, tuple(sorted(groups, key=lambda group: group.operators)))
    try:
        return Groups(graph, tuple(by_first.groups[number] for number in by_first.order))
    except GraphError:
        return by_first


def _group(graph: OperatorGraph, numbers: Sequence[int]) -> Group:
    """Called after the operator that computes most."""
    main = graph.operators[max(numbers, key=lambda number: (graph.operators[number].flops, -number))]
    return Group(main.name, main.kind, tuple(sorted(numbers)), main.layer or main.name)


def _united(graph: OperatorGraph, groups: Sequence[Group], is_anchored: Anchored) -> Group:
    """One group for several, called after the anchored one of them, or else the one that computes most."""
    flops = [sum(graph.operators[number].flops for number in group.operators) for group in groups]
    main = groups[max(range(len(groups)), key=lambda at: (is_anchored(groups[at]), flops[at], -at))]
    return replace(main, operators=tuple(sorted(number for group in groups for number in group.operators)))
