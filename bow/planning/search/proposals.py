"""What a walk changes next: the paper's symmetric proposals, and guided ones."""

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

Families: TypeAlias = Sequence[Sequence[int]]  # by operator: the operators of its family, itself among them

FLOPS_PER_OUTPUT = 32
"""An operator with more than this computes so much for each result that it may want a split of its own."""


def families_of(graph: OperatorGraph) -> list[Families]:
    """Ways to divide operators into families, without those in which every family is one operator."""
    # Roles: operators of a layer, and those without weights that are alike and read of the same roles. Chains: what
    # computes much, and what follows it in the same shape. And the closure of both.
    count = len(graph.operators)
    first: dict[str, int] = {}
    roles = [(number, first.setdefault(role, number)) for number, role in enumerate(_roles(graph))]
    chains = list(_followed(graph))
    ways = [_joined(roles, count), _joined(chains, count), _joined([*roles, *chains], count)]
    return [
        way for number, way in enumerate(ways) if any(len(family) > 1 for family in way) and way not in ways[:number]
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
    """Operators that follow another one in its shape, and that one."""
    for number, operator in enumerate(graph.operators):
        shape = graph.output_shape(operator)
        if operator.flops <= FLOPS_PER_OUTPUT * math.prod(shape):
            for maker in graph.sources(operator)[:1]:
                if shape == graph.output_shape(graph.operators[maker]):
                    yield number, maker


class Joined:
    """Which numbers are together."""

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
        """Under the other's root."""
        self._above[self.root(number)] = self.root(other)

    def members(self) -> dict[int, list[int]]:
        """By root: the numbers that are together."""
        found = defaultdict[int, list[int]](list)
        for number in range(len(self._above)):
            found[self.root(number)].append(number)
        return found


def _joined(pairs: Iterable[tuple[int, int]], count: int) -> list[list[int]]:
    """By operator, all that pairs join with it."""
    joined = Joined(count, pairs)
    members = joined.members()
    return [members[joined.root(number)] for number in range(count)]


RENEWED = 20  # the chain is looked at anew after so many draws: until then few changes were accepted


class CriticalOperators:
    """Draws operators from a chain of tasks that ends the step, the more often the more of its time they take."""

    # A task begins when another one ends; from the last one back that makes a chain without a gap, and only what
    # shortens it makes the step faster. Kwok, Ahmad: Dynamic critical-path scheduling, 1996.

    def __init__(self, simulation: Simulation, source: random.Random) -> None:
        self._simulation, self._source = simulation, source
        self._operators: list[int] = []
        self._ends: list[float] = []
        self._draws = 0

    def draw(self) -> int | None:
        """An operator's position; None: no operator takes any time."""
        if self._draws % RENEWED == 0:
            shares = critical_operators(self._simulation.task_table(), self._simulation.model, self._source)
            self._operators, self._ends = [*shares], [*itertools.accumulate(shares.values())]
        self._draws += 1
        if not self._operators:
            return None
        return self._source.choices(self._operators, cum_weights=self._ends)[0]


def critical_operators(table: NDArray[np.int64], model: StepModel, source: random.Random) -> dict[int, float]:
    """Nanoseconds by operator on a chain that ends the step; sums and updates are shared equally by their readers."""
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
    """Whose splits a task of a rank depends on."""
    operator, group = model.ranks.operator(rank), model.ranks.group(rank)
    if operator is not None:
        return (operator % len(model.graph.operators),)
    return () if group is None else model.weight_groups[group % len(model.weight_groups)].readers


Changes: TypeAlias = tuple[tuple[int, Split], ...]  # operators and their new splits; none: the partition stays as it is

SINGLE_OF_FAMILY = 0.5  # so often a single operator changes, where several could


class Proposals(Protocol):
    """Draws what to change of a partition."""

    def draw(self, splits: Sequence[Split]) -> Changes:
        """What to change."""


class SymmetricProposals:
    """Changes that are as likely forth as back: q(S' | S) = q(S | S')."""

    # The paper's, or all of a family that are split alike get a split that none of it has: the way back is as likely.

    def __init__(self, space: SplitSpace, graph: OperatorGraph, source: random.Random, families: bool = True) -> None:
        self._space, self._source = space, source
        self._movable = [operator for operator in range(space.num_operators) if space.count(operator) > 1]
        self._families = families_of(graph) if families else []

    def draw(self, splits: Sequence[Split]) -> Changes:
        if not self._movable:
            return ()
        operator = self._source.choice(self._movable)
        split = self._space.draw(operator, self._source)
        if not self._families or self._source.random() < SINGLE_OF_FAMILY:
            return () if split == splits[operator] else ((operator, split),)
        return self._together(self._source.choice(self._families)[operator], operator, split, splits)

    def _together(self, family: Sequence[int], operator: int, split: Split, splits: Sequence[Split]) -> Changes:
        old = splits[operator]
        alike = [each for each in family if splits[each] == old]
        if any(splits[each] == split for each in family):
            return ()
        if not all(self._space.holds(each, split) and self._space.holds(each, old) for each in alike):
            return ()
        return tuple((each, split) for each in alike)


SINGLE = 0.3  # so often one operator changes
UNIFORM = 0.5
"""So often one operator that changes gets any split: the paper's proposal, by which every partition can be reached."""

CONNECTED = 4  # so many families change together at most
CRITICAL = 0.3  # so often the operator that changes is one that the end of the step waits for, where these are known
FACTORS = (0.5, 2, 2, 3, 4)  # by one of these a degree changes when operators move together
TOGETHER = 0.3  # so often operators that share their devices move to others together


class GuidedProposals:
    """Changes of an operator, of connected families, or of operators that share devices; to any or a near split."""

    # Not as likely back as forth; docs/planning.md says what they are and what that means.

    def __init__(
        self,
        space: SplitSpace,
        graph: OperatorGraph,
        source: random.Random,
        critical: Callable[[], int | None] | None = None,
    ) -> None:
        self._space, self._source, self._critical = space, source, critical
        self._movable = [operator for operator in range(space.num_operators) if space.count(operator) > 1]
        self._ways = [_movable_families(way, self._movable) for way in families_of(graph)]
        self._ways = [way for way in self._ways if way] or [[[operator] for operator in self._movable]]
        self._families = [{each: family for family in way for each in family} for way in self._ways]
        self._neighbours = _neighbours(graph)

    def draw(self, splits: Sequence[Split]) -> Changes:
        if not self._movable:
            return ()
        critical = self._drawn_critical()
        if self._source.random() < TOGETHER:
            return self._moved(self._source.choice(self._movable) if critical is None else critical, splits)
        if self._source.random() < SINGLE:
            operator = self._source.choice(self._movable) if critical is None else critical
            members: Collection[int] = (operator,)
            is_near = self._source.random() >= UNIFORM
            split = self._near(operator, splits) if is_near else self._space.draw(operator, self._source)
        else:
            way = self._source.randrange(len(self._ways))
            operator = self._source.choice(self._source.choice(self._ways[way])) if critical is None else critical
            split = self._near(operator, splits)
            members = self._scope(self._families[way], operator, splits)
        chosen = ((each, self._fitting(each, split)) for each in members)
        return tuple((each, split) for each, split in chosen if split != splits[each])

    def _drawn_critical(self) -> int | None:
        """Now and then one that the end of the step waits for and that can be split otherwise."""
        if self._critical is None or self._source.random() >= CRITICAL:
            return None
        operator = self._critical()
        return operator if operator is not None and self._space.count(operator) > 1 else None

    def _moved(self, operator: int, splits: Sequence[Split]) -> Changes:
        """An operator and all that it hands on to or reads from on the same devices, on others."""
        target = self._elsewhere(operator, splits[operator])
        chosen = (
            (each, target if each == operator else self._like(each, splits[each], target))
            for each in self._sharing(operator, splits)
        )
        return tuple((each, split) for each, split in chosen if split != splits[each])

    def _elsewhere(self, operator: int, old: Split) -> Split:
        """Any split; or one along the same dimensions on as many devices, on some times as many, or on any."""
        way = self._source.randrange(4)
        if way == 0 or not old.degrees:
            return self._space.draw(operator, self._source)
        if way == 1:
            return self._space.draw_with_degrees(operator, old.degrees, self._source) or old
        if way == 2:
            return self._like(operator, old, self._space.draw(operator, self._source))
        degrees, dimension = [*old.degrees], self._source.randrange(len(old.degrees))
        degrees[dimension] = max(1, int(degrees[dimension] * self._source.choice(FACTORS)))
        return self._space.draw_with_degrees(operator, tuple(degrees), self._source) or old

    def _sharing(self, operator: int, splits: Sequence[Split]) -> list[int]:
        """An operator, and those that hand on to each other up to it with all tiles on the same devices."""
        devices = frozenset(splits[operator].devices)
        found, waiting = {operator}, [operator]
        while waiting:
            for each in self._neighbours[waiting.pop()]:
                if each not in found and frozenset(splits[each].devices) == devices:
                    found.add(each)
                    waiting.append(each)
        return sorted(each for each in found if self._space.count(each) > 1)

    def _like(self, operator: int, old: Split, target: Split) -> Split:
        """On the target's devices, split along the same dimensions as before, if it can be."""
        for degrees in _scaled(old, target.num_tiles):
            split = Split(degrees, target.devices)
            if self._space.holds(operator, split):
                return split
        return self._fitting(operator, target)

    def _scope(self, families: Mapping[int, Sequence[int]], operator: int, splits: Sequence[Split]) -> Collection[int]:
        """A family, those of it that are split as one is, or a family and some next to it."""
        which, family = self._source.randrange(3), families[operator]
        if which == 0:
            return family
        if which == 1:
            return [each for each in family if splits[each] == splits[operator]]
        connected = [*family]
        for _ in range(self._source.randrange(1, CONNECTED)):
            beside = [each for each in self._neighbours[self._source.choice(connected)] if each in families]
            if beside:
                connected.extend(families[self._source.choice(beside)])
        return dict.fromkeys(connected)

    def _near(self, operator: int, splits: Sequence[Split]) -> Split:
        old, way = splits[operator], self._source.randrange(6)
        if way == 0:
            return self._space.draw(operator, self._source)
        if way == 5:
            any_split = self._space.draw(operator, self._source)
            return self._along(operator, any_split.devices, self._source.random() < 1 / 2) or any_split
        if way == 1:
            return self._space.draw_with_degrees(operator, old.degrees, self._source) or old
        if way == 2 or not self._neighbours[operator]:
            return self._space.draw_on_devices(operator, old.devices, self._source) or old
        other = splits[self._source.choice(self._neighbours[operator])]
        if way == 3 and self._space.holds(operator, other):
            return other
        return self._space.draw_on_devices(operator, other.devices, self._source) or old

    def _fitting(self, operator: int, split: Split) -> Split:
        """The split; or one on the same devices, along the first or the last dimension if there is one."""
        if self._space.holds(operator, split):
            return split
        alike = self._along(operator, split.devices, split.degrees[:1] == (split.num_tiles,))
        found = alike or self._space.draw_on_devices(operator, split.devices, self._source)
        return found or self._space.draw(operator, self._source)

    def _along(self, operator: int, devices: tuple[int, ...], is_first: bool) -> Split | None:
        """Split along the first or the last dimension only; None: it cannot be."""
        rank = self._space.rank(operator)
        if not rank:
            return None
        ones = [1] * (rank - 1)
        split = Split((len(devices), *ones) if is_first else (*ones, len(devices)), devices)
        return split if self._space.holds(operator, split) else None


def _movable_families(way: Families, movable: Collection[int]) -> list[list[int]]:
    """Each family once, without operators that have one split only."""
    known = set(movable)
    families = dict.fromkeys(tuple(each for each in family if each in known) for family in way)
    return [list(family) for family in families if family]


def _scaled(old: Split, num_tiles: int) -> Iterator[tuple[int, ...]]:
    """Degrees with so many tiles, one of them changed: the largest first."""
    more, rest = divmod(num_tiles, old.num_tiles)
    fewer = 1 if rest == 0 else old.num_tiles // num_tiles
    if rest and old.num_tiles % num_tiles:
        return
    for place in sorted(range(len(old.degrees)), key=lambda each: -old.degrees[each]):
        if old.degrees[place] % fewer == 0:
            degree = old.degrees[place] * max(more, 1) // fewer
            yield (*old.degrees[:place], degree, *old.degrees[place + 1 :])


def _neighbours(graph: OperatorGraph) -> list[list[int]]:
    """By operator: those that make what it reads, or read what it makes."""
    found: list[set[int]] = [set() for _ in graph.operators]
    for reader, operator in enumerate(graph.operators):
        for maker in graph.sources(operator):
            found[reader].add(maker)
            found[maker].add(reader)
    return [sorted(each) for each in found]
