"""Groups of operators that are placed together, and the step times of their placements."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, TypeAlias

from bow.errors import GraphError
from bow.planning.placement.policy import Operations
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split, whole_on
from bow.planning.search.problem import Problem
from bow.planning.search.proposals import DisjointSets
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.simulation import Simulation

Devices: TypeAlias = tuple[int, ...]  # device by group


@dataclass(frozen=True)
class Group:
    """Operators that share a device, including their backward passes and weight updates."""

    name: str  # unique
    kind: str  # such as `lstm_cell` or `branch`
    operators: tuple[int, ...]  # positions in the graph, ascending
    layer: str = ""  # shared by groups with the same weights, such as the steps of an unrolled LSTM layer


@dataclass(frozen=True)
class Flow:
    """Tensors that one group reads from another."""

    maker: int  # number of the producing group
    reader: int  # number of the consuming group
    num_bytes: int  # of all tensors, each counted once, and of their gradients


@dataclass(frozen=True)
class Groups:
    """A partition of a graph's operators into groups."""

    # Backward pass and weight update belong to the operator, so they are on the same device under any grouping. Groups
    # may depend on each other cyclically: operators, not groups, are simulated and run. Only methods that process
    # groups in execution order need acyclic groups; they use `order`.

    graph: OperatorGraph
    groups: tuple[Group, ...]  # by number

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def of(self) -> tuple[int, ...]:
        """By operator: the number of its group."""
        found = {operator: number for number, group in enumerate(self.groups) for operator in group.operators}
        return tuple(found[operator] for operator in range(len(found)))

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """Traffic between groups, ordered by maker; a tensor counts once for each group that reads it."""
        makers, crossing = self.graph.makers, defaultdict[tuple[int, int], set[int]](set)
        for number, operator in enumerate(self.graph.operators):
            for tensor in operator.inputs:
                maker = self.of[makers[tensor][0]] if tensor in makers else self.of[number]
                if maker != self.of[number]:
                    crossing[maker, self.of[number]].add(tensor)
        flows = ((pair, [self.graph.tensors[each] for each in crossing[pair]]) for pair in sorted(crossing))
        return tuple(Flow(*pair, sum((1 + each.differentiable) * each.num_bytes for each in of)) for pair, of in flows)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """A topological order of the groups' numbers; ties are broken by the first operator."""
        makers: dict[int, set[int]] = {number: set() for number in range(len(self))}
        for flow in self.flows:
            makers[flow.reader].add(flow.maker)
        sorter, order, ready = TopologicalSorter(makers), [], list[tuple[int, int]]()
        try:
            sorter.prepare()
        except CycleError as error:
            held = self.groups[error.args[1][0]].name
            raise GraphError(f"groups form a dependency cycle that includes {held!r}; use smaller groups") from error
        while sorter.is_active():
            for number in sorter.get_ready():
                heappush(ready, (self.groups[number].operators[0], number))
            order.append(heappop(ready)[1])
            sorter.done(order[-1])
        return tuple(order)

    def shapes(self, group: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a group's outputs that others read; of its last output if there are none."""
        own = self.groups[group].operators
        read = {tensor for n, each in enumerate(self.graph.operators) if self.of[n] != group for tensor in each.inputs}
        made = [tensor for operator in own for tensor in self.graph.operators[operator].outputs]
        leaving = [tensor for tensor in made if tensor in read] or made[-1:]
        return tuple(self.graph.tensors[tensor].shape for tensor in leaving)

    def operations(self, num_devices: int) -> Operations:
        return Operations(
            tuple(group.kind for group in self.groups),
            tuple(map(self.shapes, range(len(self)))),
            tuple((flow.maker, flow.reader) for flow in self.flows),
            num_devices,
        )

    def splits(self, devices: Sequence[int]) -> tuple[Split, ...]:
        return tuple(
            whole_on(self.graph, operator, devices[group])
            for operator, group in zip(self.graph.operators, self.of, strict=True)
        )

    def with_kinds(self, kinds: Collection[str]) -> tuple[bool, ...]:
        """By group: whether it has an operator of one of these kinds."""
        return tuple(any(self.graph.operators[n].kind in kinds for n in group.operators) for group in self.groups)


NORMS = frozenset({"batch_norm", "frozen_batch_norm", "layer_norm"})
"""Kinds with weights that are placed with the operator they follow."""

ROLES: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention", "attention.*", "mix"),
    "softmax": ("output",),
}  # by role: name patterns of operators of which each call forms a group: a step of attention, a prediction

Anchored: TypeAlias = Callable[[Group], bool]  # whether a group is kept separate from other such groups


def merge_sole_readers(groups: Groups, is_anchored: Anchored | None = None) -> Groups:
    """Merge groups into their only reader, repeatedly until nothing changes."""
    # Two anchored groups are not merged: otherwise everything would end in one group, as the last group is the only
    # reader of the one before. Merging X into its only reader Y creates no cycle: a path from the merged group back
    # into it would have to leave X for something other than Y.
    graph = groups.graph
    is_anchored = is_anchored or _has_weights(graph)
    anchored = [is_anchored(group) for group in groups.groups]
    joined = DisjointSets(len(groups))
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
    """Return the paper's groups: LSTM cells, embeddings, attention and softmax steps, Inception branches."""
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
    """By operator within a branch: `branch` and the branch's name (path of its module, number)."""
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
    """By operator with a role: the role and its call; an operator that runs once for all calls gets its own group."""
    found: dict[int, tuple[str, str]] = {}
    split = [(*operator.name.rpartition("@"), operator.name) for operator in graph.operators]
    base = [(name, int(call)) if at and call.isdecimal() else (full, 0) for name, at, call, full in split]
    for role, patterns in ROLES.items():
        own = {n: name for n, (name, _) in enumerate(base) if any(fnmatchcase(name, pattern) for pattern in patterns)}
        counts = Counter(own.values())
        calls = max((counts[name] for n, name in own.items() if graph.operators[n].weights), default=0)
        for number, name in own.items():
            each, rest = divmod(counts[name], calls) if calls else (0, 1)
            call = name if rest else f"{role}@{base[number][1] // each}"
            found[number] = role, call
    return found


def _has_weights(graph: OperatorGraph) -> Anchored:
    operators = graph.operators
    return lambda group: any(operators[n].weights and operators[n].kind not in NORMS for n in group.operators)


def _sorted(graph: OperatorGraph, groups: Sequence[Group]) -> Groups:
    """Sort groups topologically, or by their first operators if they are cyclic."""
    by_first = Groups(graph, tuple(sorted(groups, key=lambda group: group.operators)))
    try:
        return Groups(graph, tuple(by_first.groups[number] for number in by_first.order))
    except GraphError:
        return by_first


def _group(graph: OperatorGraph, numbers: Sequence[int]) -> Group:
    """Make a group, named after its operator with the most FLOPs."""
    main = graph.operators[max(numbers, key=lambda number: (graph.operators[number].flops, -number))]
    return Group(main.name, main.kind, tuple(sorted(numbers)), main.layer or main.name)


def _united(graph: OperatorGraph, groups: Sequence[Group], is_anchored: Anchored) -> Group:
    """Merge groups; the result is named after the anchored one, or else the one with the most FLOPs."""
    flops = [sum(graph.operators[number].flops for number in group.operators) for group in groups]
    main = groups[max(range(len(groups)), key=lambda at: (is_anchored(groups[at]), flops[at], -at))]
    return replace(main, operators=tuple(sorted(number for group in groups for number in group.operators)))


@dataclass(frozen=True)
class SearchBudget:
    """Limits of a placement method; the first one reached ends it."""

    seconds: float | None = None  # None: unlimited
    placements: int | None = None  # number of placements evaluated; None: unlimited
    workers: int = 0  # processes that sample and evaluate placements for a policy; 0: this process does

    def part(self, count: int) -> SearchBudget:
        seconds = None if self.seconds is None else self.seconds / count
        placements = None if self.placements is None else max(1, self.placements // count)
        return replace(self, seconds=seconds, placements=placements)


class SimulatedEvaluator:
    """Evaluates placements with the planner's simulator; a placement that does not fit into memory has no time."""

    def __init__(
        self,
        problem: Problem,
        groups: Groups,
        *,
        processors: Collection[int] = (),
    ) -> None:
        self.problem, self.groups = problem, groups
        self.processors = tuple(sorted(processors))
        self.num_simulated = 0  # distinct placements only
        self._known: dict[Devices, float | None] = {}
        self._simulation: Simulation | None = None

    def __call__(self, placements: Sequence[Devices]) -> list[float | None]:
        """Return the step time in seconds of each placement; None: does not fit."""
        return [self.seconds(placement) for placement in placements]

    def seconds(self, placement: Sequence[int]) -> float | None:
        devices = tuple(map(int, placement))
        if devices not in self._known:
            self._known[devices] = self._simulated(devices)
        return self._known[devices]

    def result(self, placement: Sequence[int]) -> SimulationResult:
        """Return all tasks, times and memory of a step, whether the placement fits or not."""
        return self.problem.simulate(self.groups.splits(tuple(placement)))

    @property
    def num_devices(self) -> int:
        return self.problem.topology.num_devices

    @property
    def accelerators(self) -> tuple[int, ...]:
        """The devices that are not processors; the processors if there are no others."""
        return tuple(n for n in range(self.num_devices) if n not in self.processors) or self.processors

    def all_on(self, device: int) -> Devices:
        return (device,) * len(self.groups)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle everything except the native simulation, which another process creates itself."""
        return {**vars(self), "_simulation": None}

    @cached_property
    def whole_on(self) -> tuple[tuple[Split, ...], ...]:
        """By device and operator: the split that places the operator whole on the device."""
        return tuple(map(self.groups.splits, map(self.all_on, range(self.num_devices))))

    def _simulated(self, devices: Devices) -> float | None:
        self.num_simulated += 1
        splits = [self.whole_on[devices[group]][number] for number, group in enumerate(self.groups.of)]
        simulation, self._simulation = self._simulation, None  # Ctrl-C may leave a proposal in it: it is not used again
        if simulation is None:
            simulation = self.problem.simulation(splits, must_fit=False)
        makespan_ns = simulation.evaluate(splits)
        self._simulation = simulation
        return None if makespan_ns is None else makespan_ns / 1e9
