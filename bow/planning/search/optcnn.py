"""OptCNN: the partition with the least sum of times, assuming that no tasks overlap."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.partition import Split
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import degrees_of, device_assignments
from bow.planning.search.tile_tables import Edge, TransferTimes, edges_of, group_times, overlaps
from bow.planning.simulator.step_model import StepModel, WeightGroup

Table: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Term:
    """A cost table over some choices."""

    choices: tuple[int, ...]  # ascending, without repetition
    costs: Table  # one dimension per choice


@dataclass(frozen=True)
class Minimum:
    """Options with the least total cost."""

    options: tuple[int, ...]  # option taken, by choice
    cost: float
    # Choices fixed greedily because their tables would have been too large; the minimum is exact if there are none.
    fixed: tuple[int, ...] = ()


class Elimination:
    """Minimise the sum of terms over one option per choice by bucket elimination (Dechter, 1999)."""

    # A choice is replaced by a term with the least sum for each combination of the choices it shares terms with,
    # smallest table first. If all tables are too large, the choice with the most neighbours is fixed first.

    def __init__(self, counts: Sequence[int], terms: Iterable[Term], most_entries: int = 2**24) -> None:
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

    def minimum(self) -> Minimum:
        while self._left:
            counts = self._counts
            sizes = {each: math.prod(counts[other] for other in self._neighbours(each)) for each in self._left}
            choice = min(self._left, key=lambda each: (sizes[each], each))
            if sizes[choice] * self._counts[choice] > self._most:
                choice = max(self._left, key=lambda each: (len(self._neighbours(each)), -each))
                self._fix(choice)
            self._eliminate(choice)
        options = [0] * len(self._counts)
        for choice, others, best in reversed(self._steps):
            options[choice] = int(best[tuple(options[other] for other in others)])
        return Minimum(tuple(options), self._cost, tuple(self._fixed))

    def _neighbours(self, choice: int) -> tuple[int, ...]:
        found = {other for number in self._of[choice] for other in self._terms[number].choices}
        return tuple(sorted(found - {choice}))

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
        """Fix a choice to one option and reduce its terms accordingly."""
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
    """Return a term's table broadcastable over all axes (length 1 where it does not depend on one)."""
    order = sorted(range(len(term.choices)), key=lambda place: axes.index(term.choices[place]))
    shape = [term.costs.shape[term.choices.index(axis)] if axis in term.choices else 1 for axis in axes]
    return term.costs.transpose(order).reshape(shape)


ORDERS = 2  # at most this many orders of dimensions to assign tiles to devices: rows first, or columns first


def optcnn(problem: Problem) -> tuple[Split, ...]:
    """Choose a split over the first n devices for every layer, by dynamic programming."""
    # Minimises the sum of computing, reductions, updates, transfers and gradient transfers. Exact where layers can be
    # eliminated one by one with tables of reasonable size, as in series-parallel graphs. Jia, Lin, Qi, Aiken: Exploring
    # hidden dimensions in parallelizing convolutional neural networks, 2018.
    layers = Layers(problem.model())
    return layers.splits(layers.solve())


class Layers:
    """One choice per layer, and its cost terms."""

    def __init__(self, model: StepModel) -> None:
        self._model, self._transfers = model, TransferTimes(model.topology)
        numbers: dict[object, int] = {}
        layers = [(each.layer or each.name, self._sizes(index)) for index, each in enumerate(model.graph.operators)]
        self._choice = [numbers.setdefault(layer, len(numbers)) for layer in layers]
        firsts = [self._choice.index(choice) for choice in range(len(numbers))]
        self._options = [self._splits(first) for first in firsts]
        self._moved: dict[tuple[int, ...], Table] = {}

    def solve(self) -> Minimum:
        return Elimination([len(options) for options in self._options], self._terms()).minimum()

    def splits(self, found: Minimum) -> tuple[Split, ...]:
        return tuple(self._options[choice][found.options[choice]] for choice in self._choice)

    def _sizes(self, operator: int) -> tuple[tuple[int, bool], ...]:
        dimensions = self._model.rules.dimensions(self._model.graph.operators[operator], self._model.graph)
        return tuple((each.size, each.kind is not None) for each in dimensions)

    def _splits(self, operator: int) -> list[Split]:
        devices = range(self._model.topology.num_devices)
        return [
            Split(degrees, each)
            for degrees in degrees_of(self._sizes(operator), len(devices), even=True, num_devices=len(devices))
            for each in itertools.islice(
                dict.fromkeys(device_assignments(devices, tuple(n for n in degrees if n > 1))), ORDERS
            )
        ]

    def _terms(self) -> Iterator[Term]:
        alone = [np.zeros(len(options)) for options in self._options]
        for operator, choice in enumerate(self._choice):
            alone[choice] += [self._computing_ns(operator, split) for split in self._options[choice]]
        for group in self._model.weight_groups:
            choice = self._choice[group.readers[0]]
            alone[choice] += [self._updating_ns(group, split) for split in self._options[choice]]
        together: dict[tuple[int, int], Table] = {}
        for edge in edges_of(self._model.graph):
            pair = self._choice[edge.maker], self._choice[edge.reader]
            moving = self._moving(edge)
            if pair[0] == pair[1]:
                alone[pair[0]] += moving.diagonal()
            elif pair[0] > pair[1]:
                together[pair[::-1]] = together.get(pair[::-1], 0) + moving.T
            else:
                together[pair] = together.get(pair, 0) + moving
        yield from (Term((choice,), costs) for choice, costs in enumerate(alone))
        yield from (Term(pair, costs) for pair, costs in together.items())

    def _computing_ns(self, operator: int, split: Split) -> int:
        forward, backward = self._model.costs.of_tiles(
            operator, self._model.tilings.of(operator, split.degrees), split.devices
        )
        return int((forward + backward).max())

    def _updating_ns(self, group: WeightGroup, split: Split) -> int:
        """Time of reductions and updates of a weight group, if all its readers are split like the first."""
        times = group_times(self._model, group, group.readers[0], split)
        return sum(times.reductions_ns.values()) + max(times.updates_ns.values(), default=0)

    def _moving(self, edge: Edge) -> Table:
        """Time to transfer a tensor and its gradient, [split of the maker, split of the reader]."""
        makers, readers = self._options[self._choice[edge.maker]], self._options[self._choice[edge.reader]]
        made = self._model.tilings.of(edge.maker, makers[0].degrees)
        read = self._model.tilings.of(edge.reader, readers[0].degrees)
        is_own = self._choice[edge.maker] == self._choice[edge.reader]
        key = id(made), id(read), edge.output, edge.input, is_own
        if key not in self._moved:
            self._moved[key] = np.array([[self._moving_ns(edge, one, other) for other in readers] for one in makers])
        return self._moved[key]

    def _moving_ns(self, edge: Edge, one: Split, other: Split) -> float:
        made, read = self._model.tilings.of(edge.maker, one.degrees), self._model.tilings.of(edge.reader, other.degrees)
        num_bytes = edge.itemsize * overlaps(made.outputs[edge.output], read.inputs[edge.input])
        times = self._transfers.of(num_bytes, np.array(one.devices)[:, None], np.array(other.devices)[None])
        directions = 1 + edge.is_differentiable
        return float(directions * max(times.sum(axis=0).max(), times.sum(axis=1).max()))
