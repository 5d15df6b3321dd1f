"""The least sum of terms that each depend on a few choices, by eliminating one choice after another."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Term:
    """What some choices cost together.

    Attributes:
        choices: their numbers, each once, ascending.
        costs: with a dimension for each choice.
    """

    choices: tuple[int, ...]
    costs: Table


@dataclass(frozen=True)
class Minimum:
    """The least sum.

    Attributes:
        options: by choice: which option it is.
        cost: the sum of all terms.
        fixed: choices that had to be taken one by one because their tables would have been too large; the minimum is
            exact where there are none.
    """

    options: tuple[int, ...]
    cost: float
    fixed: tuple[int, ...] = ()


def minimise(counts: Sequence[int], terms: Iterable[Term], most_entries: int = 2**24) -> Minimum:
    """Find the options with the least sum of all terms.

    A choice is eliminated by replacing the terms that depend on it by one that holds, for each combination of what they
    depend on besides, the least sum that it allows. Along a chain this is dynamic programming; series and parallel
    compositions are reduced as node and edge elimination do. The choice whose new table is smallest goes first.

    Where every table would be too large, the choice that most depends on is fixed to the option that is best when all
    others may still be chosen freely for each of its terms.

    Example:
        >>> unary, pair = Term((0,), np.array([0.0, 1.0])), Term((0, 1), np.array([[5.0, 5.0], [2.0, 3.0]]))
        >>> found = minimise([2, 2], [unary, pair])
        >>> found.options, found.cost
        ((1, 0), 3.0)

    References:
        Dechter: Bucket elimination, a unifying framework for reasoning, 1999. Jia, Lin, Qi, Aiken: Exploring hidden
        dimensions in parallelizing convolutional neural networks, 2018, section 5.2.
    """
    elimination = _Elimination(counts, terms, most_entries)
    elimination.run()
    return elimination.minimum()


class _Elimination:
    def __init__(self, counts: Sequence[int], terms: Iterable[Term], most_entries: int) -> None:
        self._counts, self._most = counts, most_entries
        self._terms: dict[int, Term] = dict(enumerate(terms))
        self._of: list[set[int]] = [set() for _ in counts]
        for number, term in self._terms.items():
            for choice in term.choices:
                self._of[choice].add(number)
        self._next = len(self._terms)
        self._left = set(range(len(counts)))
        self._steps: list[tuple[int, tuple[int, ...], NDArray[np.int64]]] = []
        self._fixed: list[int] = []
        self._cost = 0.0

    def run(self) -> None:
        while self._left:
            sizes = {choice: self._size(choice) for choice in self._left}
            choice = min(self._left, key=lambda each: (sizes[each], each))
            if sizes[choice] * self._counts[choice] > self._most:
                choice = max(self._left, key=lambda each: (len(self._neighbours(each)), -each))
                self._fix(choice)
            self._eliminate(choice)

    def minimum(self) -> Minimum:
        options = [0] * len(self._counts)
        for choice, others, best in reversed(self._steps):
            options[choice] = int(best[tuple(options[other] for other in others)])
        return Minimum(tuple(options), self._cost, tuple(self._fixed))

    def _neighbours(self, choice: int) -> tuple[int, ...]:
        found = {other for number in self._of[choice] for other in self._terms[number].choices}
        return tuple(sorted(found - {choice}))

    def _size(self, choice: int) -> int:
        size = 1
        for other in self._neighbours(choice):
            size *= self._counts[other]
        return size

    def _eliminate(self, choice: int) -> None:
        others = self._neighbours(choice)
        axes = (*others, choice)
        total: Table = np.zeros([self._counts[each] for each in axes])
        for number in list(self._of[choice]):
            total += _aligned(self._take(number), axes)
        best = total.argmin(axis=-1)
        self._steps.append((choice, others, best))
        self._left.discard(choice)
        least: Table = total.min(axis=-1)
        if others:
            self._put(Term(others, least))
        else:
            self._cost += float(least)

    def _fix(self, choice: int) -> None:
        """Leave a choice one option, and split its terms off from it."""
        hopes: Table = np.zeros(self._counts[choice])
        for number in self._of[choice]:
            term = self._terms[number]
            axes = tuple(axis for axis, each in enumerate(term.choices) if each != choice)
            hopes += term.costs.min(axis=axes) if axes else term.costs
        option = int(hopes.argmin())
        self._fixed.append(choice)
        for number in list(self._of[choice]):
            term = self._take(number)
            rest = tuple(each for each in term.choices if each != choice)
            costs = np.take(term.costs, option, axis=term.choices.index(choice))
            if rest:
                self._put(Term(rest, costs))
            else:
                self._cost += float(costs)
        others: Table = np.full(self._counts[choice], np.inf)
        others[option] = 0.0
        self._put(Term((choice,), others))

    def _take(self, number: int) -> Term:
        term = self._terms.pop(number)
        for choice in term.choices:
            self._of[choice].discard(number)
        return term

    def _put(self, term: Term) -> None:
        self._terms[self._next] = term
        for choice in term.choices:
            self._of[choice].add(self._next)
        self._next += 1


def _aligned(term: Term, axes: Sequence[int]) -> NDArray[Any]:
    """A term's table with all axes, of length 1 where it does not depend on them."""
    order = sorted(range(len(term.choices)), key=lambda place: axes.index(term.choices[place]))
    shape = [term.costs.shape[term.choices.index(axis)] if axis in term.choices else 1 for axis in axes]
    return term.costs.transpose(order).reshape(shape)
