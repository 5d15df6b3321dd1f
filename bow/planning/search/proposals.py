"""What a search changes next, by the paper's rule: one operator, or several that are alike, as likely forth as back."""

import random
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.split import Split
from bow.planning.search.families import families_of
from bow.planning.search.moves import SplitSpace

Changes: TypeAlias = tuple[tuple[int, Split], ...]
"""Operators and their new splits; none: the strategy stays as it is."""

SINGLE_OF_FAMILY = 0.5
"""So often a single operator changes, where several could."""


class Proposals(Protocol):
    """Draws what to change of a strategy."""

    def draw(self, splits: Sequence[Split]) -> Changes:
        """What to change."""


class SymmetricProposals:
    """Changes that are as likely forth as back: q(S' | S) = q(S | S').

    * One operator, drawn uniformly, gets a split drawn uniformly from its set (the paper's proposal).
    * Of a family of operators, such as the steps of an unrolled layer, all that are now split alike get another split
      that none of the family has. The way back draws the same operators, and is as likely. One operator of a family
      rarely gains anything for itself: its weights then lie on one more device.

    Args:
        space: by operator, the splits to choose from.
        graph: whose operators they are.
        source: of random numbers.
        families: whether families change together.

    References:
        Jia, Zaharia, Aiken, 2018, section 6.2.
    """

    def __init__(self, space: SplitSpace, graph: OperatorGraph, source: random.Random, families: bool = True) -> None:
        self._space, self._source = space, source
        self._movable = [operator for operator in range(space.num_operators) if space.count(operator) > 1]
        self._families = families_of(graph) if families else []

    def draw(self, splits: Sequence[Split]) -> Changes:
        """What to change of a strategy."""
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
