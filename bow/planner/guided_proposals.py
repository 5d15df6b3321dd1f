"""What a search changes next, by guesses at what could be better."""

import random
from collections.abc import Collection, Sequence

from bow.planner.families import Families, families_of
from bow.planner.moves import SplitSpace
from bow.planner.operator_graph import OperatorGraph
from bow.planner.proposals import Changes
from bow.planner.split import Split

SINGLE = 0.3
"""So often one operator changes."""

UNIFORM = 0.5
"""So often one operator that changes gets any split: the paper's proposal, by which every strategy can be reached."""


REGION = 4
"""So many families change together at most."""


class GuidedProposals:
    """Changes of one operator, of families or of regions; to any split, to one nearby, or to a neighbour's.

    Every way to divide operators into families is as likely as another, and of each every family: the forty steps of a
    layer are changed no more often than the one embedding. A family changes whole, or as far as it is split as one of
    it is, or together with some families that it reads or that read it: a region. New splits are any, one of the same
    degrees, one on the same devices, or the split or the devices of an operator that makes or reads what it reads or
    makes. Who cannot have the very split gets the one most like it on the same devices. Now and then one operator
    changes alone, as in the paper.

    These changes are not as likely back as forth, so that a walk does not visit strategies as often as their times
    say. It finds fast ones sooner: in strategies that are fast, operators that depend on each other, or share their
    weights, are seldom split differently.

    Args:
        space: by operator, the splits to choose from.
        graph: whose operators they are.
        source: of random numbers.
    """

    def __init__(self, space: SplitSpace, graph: OperatorGraph, source: random.Random) -> None:
        self._space, self._source = space, source
        self._movable = [operator for operator in range(space.num_operators) if space.count(operator) > 1]
        self._ways = [_movable_families(way, self._movable) for way in families_of(graph)]
        self._ways = [way for way in self._ways if way] or [[[operator] for operator in self._movable]]
        self._neighbours = _neighbours(graph)

    def draw(self, splits: Sequence[Split]) -> Changes:
        """What to change of a strategy.

        Args:
            splits: by operator, of the strategy as it is.
        """
        if not self._movable:
            return ()
        if self._source.random() < SINGLE:
            members: Collection[int] = (operator := self._source.choice(self._movable),)
            is_near = self._source.random() >= UNIFORM
            split = self._near(operator, splits) if is_near else self._space.draw(operator, self._source)
        else:
            way = self._source.choice(self._ways)
            family = self._source.choice(way)
            operator = self._source.choice(family)
            split = self._near(operator, splits)
            members = self._scope(way, family, operator, splits)
        chosen = ((each, self._fitting(each, split)) for each in members)
        return tuple((each, split) for each, split in chosen if split != splits[each])

    def _scope(
        self, way: Sequence[Sequence[int]], family: Sequence[int], operator: int, splits: Sequence[Split]
    ) -> Collection[int]:
        """A family, those of it that are split as one is, or a family and some next to it."""
        which = self._source.randrange(3)
        if which == 0:
            return family
        if which == 1:
            return [each for each in family if splits[each] == splits[operator]]
        of = {each: number for number, each_family in enumerate(way) for each in each_family}
        region = [*family]
        for _ in range(self._source.randrange(1, REGION)):
            beside = [each for each in self._neighbours[self._source.choice(region)] if each in of]
            if beside:
                region.extend(way[of[self._source.choice(beside)]])
        return dict.fromkeys(region)

    def _near(self, operator: int, splits: Sequence[Split]) -> Split:
        old, way = splits[operator], self._source.randrange(6)
        if way == 0:
            return self._space.draw(operator, self._source)
        if way == 5:
            return self._along_one(operator, self._space.draw(operator, self._source))
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

    def _along_one(self, operator: int, split: Split) -> Split:
        """With the same devices along the first or the last dimension, if it can be split so."""
        return self._along(operator, split.devices, self._source.random() < 1 / 2) or split

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


def _neighbours(graph: OperatorGraph) -> list[list[int]]:
    """By operator: those that make what it reads, or read what it makes."""
    makers = graph.makers
    found: list[set[int]] = [set() for _ in graph.operators]
    for reader, operator in enumerate(graph.operators):
        for tensor in operator.inputs:
            if tensor in makers:
                found[reader].add(makers[tensor])
                found[makers[tensor]].add(reader)
    return [sorted(each) for each in found]
