"""Proposal distributions of the Metropolis search: FlexFlow's symmetric ones, and guided ones."""

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.simulation import Simulation
from bow.planning.simulator.step_model import StepModel

Families: TypeAlias = Sequence[Sequence[int]]  # by operator: all operators of its family, including itself

FLOPS_PER_OUTPUT = 32  # with more FLOPs per output element an operator may want a split of its own


def families_of(graph: OperatorGraph) -> list[Families]:
    """Return groupings of operators into families, without trivial ones."""
    # Roles: operators of a layer, and operators without weights of the same kind and shape that read from the same
    # roles. Chains: an operator with much arithmetic and those that follow it in the same shape. Third: the closure of
    # both.
    count = len(graph.operators)
    first: dict[str, int] = {}
    roles = [(number, first.setdefault(role, number)) for number, role in enumerate(_roles(graph))]
    chains = list(_followed(graph))
    groupings = [_joined(roles, count), _joined(chains, count), _joined([*roles, *chains], count)]
    return [
        grouping
        for number, grouping in enumerate(groupings)
        if any(len(family) > 1 for family in grouping) and grouping not in groupings[:number]
    ]


def _roles(graph: OperatorGraph) -> list[str]:
    numbers: dict[str, int] = {}
    roles: list[str] = []
    for operator in graph.operators:
        read = sorted({roles[maker] for maker in graph.sources(operator)})
        if operator.weights or operator.layer not in ("", operator.name):
            role = f"layer {operator.layer or operator.name} {operator.kind}"
        elif read:
            role = f"{operator.kind} {graph.output_shape(operator)} {read}"
        else:
            role = operator.name
        roles.append(f"role {numbers.setdefault(role, len(numbers))}")
    return roles


def _followed(graph: OperatorGraph) -> Iterable[tuple[int, int]]:
    """Yield (follower, maker) for operators with little arithmetic that keep the shape of their first input."""
    for number, operator in enumerate(graph.operators):
        shape = graph.output_shape(operator)
        if operator.flops <= FLOPS_PER_OUTPUT * math.prod(shape):
            for maker in graph.sources(operator)[:1]:
                if shape == graph.output_shape(graph.operators[maker]):
                    yield number, maker


class DisjointSets:
    """Disjoint sets (union-find) of the numbers below a count."""

    def __init__(self, count: int, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._above = [*range(count)]
        for one, other in pairs:
            self.join(one, other)

    def root(self, number: int) -> int:
        while self._above[number] != number:
            self._above[number] = self._above[self._above[number]]
            number = self._above[number]
        return number

    def join(self, number: int, other: int) -> None:
        """Merge the set of `number` into that of `other`."""
        self._above[self.root(number)] = self.root(other)

    def members(self) -> dict[int, list[int]]:
        """Return the sets by their root."""
        found = defaultdict[int, list[int]](list)
        for number in range(len(self._above)):
            found[self.root(number)].append(number)
        return found


def _joined(pairs: Iterable[tuple[int, int]], count: int) -> list[list[int]]:
    """By operator: its connected component."""
    joined = DisjointSets(count, pairs)
    members = joined.members()
    return [members[joined.root(number)] for number in range(count)]


CRITICAL_REFRESH_DRAWS = 20  # draws between updates of the critical chain: few changes are accepted meanwhile


class CriticalOperators:
    """Draws operators on the critical chain, with probability proportional to their time on it."""

    # Every task starts when another one ends; following these back from the last one gives a chain without gaps, and
    # only shortening it shortens the step. Kwok, Ahmad: Dynamic critical-path scheduling, 1996.

    def __init__(self, simulation: Simulation, source: random.Random) -> None:
        self._simulation, self._source = simulation, source
        self._operators: list[int] = []
        self._ends: list[float] = []
        self._draws = 0

    def draw(self) -> int | None:
        """Return an operator's position; None: no operator takes any time."""
        if self._draws % CRITICAL_REFRESH_DRAWS == 0:
            shares = critical_operators(self._simulation.task_table(), self._simulation.model, self._source)
            self._operators, self._ends = [*shares], [*itertools.accumulate(shares.values())]
        self._draws += 1
        if not self._operators:
            return None
        return self._source.choices(self._operators, cum_weights=self._ends)[0]


def critical_operators(table: NDArray[np.int64], model: StepModel, source: random.Random) -> dict[int, float]:
    """Return ns by operator on a critical chain; tasks of a weight group are shared equally among its readers."""
    table = table[table[:, 2] > table[:, 1]]
    table = table[np.argsort(table[:, 2], kind="stable")]
    ends = table[:, 2]
    found: dict[int, float] = {}
    at = int(ends[-1]) if len(ends) else 0
    while at > 0:
        those = range(*(int(np.searchsorted(ends, at, side)) for side in ("left", "right")))
        rank, start, _ = table[source.choice(those)].tolist()
        readers = _operators_of(rank, model)
        for reader in readers:
            found[reader] = found.get(reader, 0.0) + (at - start) / len(readers)
        at = start
    return found


def _operators_of(rank: int, model: StepModel) -> tuple[int, ...]:
    """Return the operators whose splits determine the tasks of a rank."""
    operator, group = model.ranks.operator(rank), model.ranks.group(rank)
    if operator is not None:
        return (operator % len(model.graph.operators),)
    return () if group is None else model.weight_groups[group % len(model.weight_groups)].readers


Changes: TypeAlias = tuple[tuple[int, Split], ...]  # operators and their new splits; empty: no change

P_SINGLE_OF_FAMILY = 0.5  # probability of changing a single operator instead of its family


class Proposals(Protocol):
    """A proposal distribution over changes of a partition."""

    def draw(self, splits: Sequence[Split]) -> Changes: ...


class SymmetricProposals:
    """Symmetric proposals: q(S' | S) = q(S | S')."""

    # The paper's; or all equally split members of a family change to a split that no member has, so that the reverse
    # proposal is equally likely.

    def __init__(self, space: SplitSpace, graph: OperatorGraph, source: random.Random, families: bool = True) -> None:
        self._space, self._source = space, source
        self._movable = [operator for operator in range(space.num_operators) if space.count(operator) > 1]
        self._families = families_of(graph) if families else []

    def draw(self, splits: Sequence[Split]) -> Changes:
        if not self._movable:
            return ()
        operator = self._source.choice(self._movable)
        split = self._space.draw(operator, self._source)
        if not self._families or self._source.random() < P_SINGLE_OF_FAMILY:
            return () if split == splits[operator] else ((operator, split),)
        return self._together(self._source.choice(self._families)[operator], operator, split, splits)

    def _together(self, family: Sequence[int], operator: int, split: Split, splits: Sequence[Split]) -> Changes:
        old = splits[operator]
        alike = [each for each in family if splits[each] == old]
        if any(splits[each] == split for each in family):
            return ()
        if not all(self._space.contains(each, split) and self._space.contains(each, old) for each in alike):
            return ()
        return tuple((each, split) for each in alike)


P_SINGLE = 0.3  # probability of changing one operator
P_UNIFORM = 0.5  # then probability of any split: FlexFlow's proposal, makes the chain irreducible
MAX_CONNECTED_FAMILIES = 4  # maximum number of families that change together
P_CRITICAL = 0.3  # probability of choosing an operator on the critical chain, if it is known
FACTORS = (0.5, 2, 2, 3, 4)  # factors applied to a degree when operators move together
P_MOVE_TOGETHER = 0.3  # probability of moving operators that share their devices


class GuidedProposals:
    """Heuristic proposals for single operators, connected families, or operators that share devices."""

    # Not symmetric, and not corrected for; see docs/planning.md for the consequences.

    def __init__(
        self,
        space: SplitSpace,
        graph: OperatorGraph,
        source: random.Random,
        critical: Callable[[], int | None] | None = None,
    ) -> None:
        self._space, self._source, self._critical = space, source, critical
        self._movable = [operator for operator in range(space.num_operators) if space.count(operator) > 1]
        self._groupings = [_movable_families(grouping, self._movable) for grouping in families_of(graph)]
        self._groupings = [grouping for grouping in self._groupings if grouping] or [
            [[operator] for operator in self._movable]
        ]
        self._families = [{each: family for family in grouping for each in family} for grouping in self._groupings]
        self._neighbours = _neighbours(graph)

    def draw(self, splits: Sequence[Split]) -> Changes:
        if not self._movable:
            return ()
        critical = self._drawn_critical()
        if self._source.random() < P_MOVE_TOGETHER:
            return self._moved(self._source.choice(self._movable) if critical is None else critical, splits)
        if self._source.random() < P_SINGLE:
            operator = self._source.choice(self._movable) if critical is None else critical
            members: Collection[int] = (operator,)
            is_near = self._source.random() >= P_UNIFORM
            split = self._near(operator, splits) if is_near else self._space.draw(operator, self._source)
        else:
            grouping = self._source.randrange(len(self._groupings))
            operator = (
                self._source.choice(self._source.choice(self._groupings[grouping])) if critical is None else critical
            )
            split = self._near(operator, splits)
            members = self._scope(self._families[grouping], operator, splits)
        chosen = ((each, self._fitting(each, split)) for each in members)
        return tuple((each, split) for each, split in chosen if split != splits[each])

    def _drawn_critical(self) -> int | None:
        """With probability `P_CRITICAL`, draw a splittable operator on the critical chain."""
        if self._critical is None or self._source.random() >= P_CRITICAL:
            return None
        operator = self._critical()
        return operator if operator is not None and self._space.count(operator) > 1 else None

    def _moved(self, operator: int, splits: Sequence[Split]) -> Changes:
        """Move an operator and the connected ones on the same devices to other devices."""
        target = self._elsewhere(operator, splits[operator])
        chosen = (
            (each, target if each == operator else self._keeping_dimensions(each, splits[each], target))
            for each in self._sharing(operator, splits)
        )
        return tuple((each, split) for each, split in chosen if split != splits[each])

    def _elsewhere(self, operator: int, old: Split) -> Split:
        """Draw any split, or one with the same split dimensions on as many, some times as many, or other devices."""
        case = self._source.randrange(4)
        if case == 0 or not old.degrees:
            return self._space.draw(operator, self._source)
        if case == 1:
            return self._space.draw_with_degrees(operator, old.degrees, self._source) or old
        if case == 2:
            return self._keeping_dimensions(operator, old, self._space.draw(operator, self._source))
        degrees, dimension = [*old.degrees], self._source.randrange(len(old.degrees))
        degrees[dimension] = max(1, int(degrees[dimension] * self._source.choice(FACTORS)))
        return self._space.draw_with_degrees(operator, tuple(degrees), self._source) or old

    def _sharing(self, operator: int, splits: Sequence[Split]) -> list[int]:
        """Return the operators connected to one through operators on the same devices, including itself."""
        devices = frozenset(splits[operator].devices)
        found, waiting = {operator}, [operator]
        while waiting:
            for each in self._neighbours[waiting.pop()]:
                if each not in found and frozenset(splits[each].devices) == devices:
                    found.add(each)
                    waiting.append(each)
        return sorted(each for each in found if self._space.count(each) > 1)

    def _keeping_dimensions(self, operator: int, old: Split, target: Split) -> Split:
        """Place on the target's devices, keeping the split dimensions if possible."""
        for degrees in _scaled(old, target.num_tiles):
            split = Split(degrees, target.devices)
            if self._space.contains(operator, split):
                return split
        return self._fitting(operator, target)

    def _scope(self, families: Mapping[int, Sequence[int]], operator: int, splits: Sequence[Split]) -> Collection[int]:
        """Choose the operators to change: a family, its members split like the operator, or also adjacent families."""
        which, family = self._source.randrange(3), families[operator]
        if which == 0:
            return family
        if which == 1:
            return [each for each in family if splits[each] == splits[operator]]
        connected = [*family]
        for _ in range(self._source.randrange(1, MAX_CONNECTED_FAMILIES)):
            adjacent = [each for each in self._neighbours[self._source.choice(connected)] if each in families]
            if adjacent:
                connected.extend(families[self._source.choice(adjacent)])
        return dict.fromkeys(connected)

    def _near(self, operator: int, splits: Sequence[Split]) -> Split:
        old, case = splits[operator], self._source.randrange(6)
        if case == 0:
            return self._space.draw(operator, self._source)
        if case == 5:
            any_split = self._space.draw(operator, self._source)
            return self._along(operator, any_split.devices, self._source.random() < 1 / 2) or any_split
        if case == 1:
            return self._space.draw_with_degrees(operator, old.degrees, self._source) or old
        if case == 2 or not self._neighbours[operator]:
            return self._space.draw_on_devices(operator, old.devices, self._source) or old
        other = splits[self._source.choice(self._neighbours[operator])]
        if case == 3 and self._space.contains(operator, other):
            return other
        return self._space.draw_on_devices(operator, other.devices, self._source) or old

    def _fitting(self, operator: int, split: Split) -> Split:
        """Return the split; if not in the space, one on its devices, preferably along the first or last dimension."""
        if self._space.contains(operator, split):
            return split
        alike = self._along(operator, split.devices, split.degrees[:1] == (split.num_tiles,))
        found = alike or self._space.draw_on_devices(operator, split.devices, self._source)
        return found or self._space.draw(operator, self._source)

    def _along(self, operator: int, devices: tuple[int, ...], is_first: bool) -> Split | None:
        """Split along the first or the last dimension only; None: not possible."""
        rank = self._space.rank(operator)
        if not rank:
            return None
        ones = [1] * (rank - 1)
        split = Split((len(devices), *ones) if is_first else (*ones, len(devices)), devices)
        return split if self._space.contains(operator, split) else None


def _movable_families(grouping: Families, movable: Collection[int]) -> list[list[int]]:
    """Return the distinct families, restricted to operators with a choice of splits."""
    known = set(movable)
    families = dict.fromkeys(tuple(each for each in family if each in known) for family in grouping)
    return [list(family) for family in families if family]


def _scaled(old: Split, num_tiles: int) -> Iterator[tuple[int, ...]]:
    """Yield degrees with this many tiles and one degree changed; the largest degree first."""
    more, rest = divmod(num_tiles, old.num_tiles)
    fewer = 1 if rest == 0 else old.num_tiles // num_tiles
    if rest and old.num_tiles % num_tiles:
        return
    for place in sorted(range(len(old.degrees)), key=lambda each: -old.degrees[each]):
        if old.degrees[place] % fewer == 0:
            degree = old.degrees[place] * max(more, 1) // fewer
            yield (*old.degrees[:place], degree, *old.degrees[place + 1 :])


def _neighbours(graph: OperatorGraph) -> list[list[int]]:
    """By operator: the makers of its inputs and the readers of its outputs."""
    found: list[set[int]] = [set() for _ in graph.operators]
    for reader, operator in enumerate(graph.operators):
        for maker in graph.sources(operator):
            found[reader].add(maker)
            found[maker].add(reader)
    return [sorted(each) for each in found]
