"""OptCNN: the strategy with the least sum of times, as if nothing ran beside anything else."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.split import Split
from bow.planning.problem.step_model import StepModel
from bow.planning.rules.rule import Rules
from bow.planning.search.elimination import Table, Term, minimise
from bow.planning.search.moves import dealt, degrees_of
from bow.planning.simulator.edges import Edge, TransferTimes, edges_of, overlaps
from bow.planning.simulator.task_costs import Costs
from bow.planning.simulator.updating import group_times
from bow.planning.simulator.weight_groups import WeightGroup

ORDERS = 2
"""Tiles are dealt to devices along the dimensions in at most so many orders: rows first, or columns first."""


@dataclass(frozen=True)
class OptCNNPartition:
    """What OptCNN found.

    Attributes:
        splits: by operator.
        sum_ns: the sum that it has made least: of times of operators, of reductions and of transfers.
        is_exact: whether no other strategy with the same kinds of splits has a smaller sum.
    """

    splits: tuple[Split, ...]
    sum_ns: int
    is_exact: bool


def optcnn(graph: OperatorGraph, rules: Rules, topology: DeviceTopology, costs: Costs) -> OptCNNPartition:
    """Choose for every layer how it is split over the first n devices, by dynamic programming.

        cost = sum of operators (computing + reduction and update of weights) + sum of tensors (transfer there and back)

    Operators are split into equal tiles, as many as they have devices; those of one layer, such as the steps of an
    unrolled LSTM, are split alike. A chain of operators is solved exactly, and so is every graph whose layers can be
    eliminated one by one with tables of reasonable size, as all series-parallel ones can; else some layers are fixed
    first, and `is_exact` is False.

    References:
        Jia, Lin, Qi, Aiken: Exploring hidden dimensions in parallelizing convolutional neural networks, 2018.
        Jia, Zaharia, Aiken, 2018, section 8.2.3.
    """
    return _Layers(StepModel(graph, rules, topology, costs)).solve()


class _Layers:
    """A choice for each layer, and what the choices cost."""

    def __init__(self, model: StepModel) -> None:
        self._model, self._transfers = model, TransferTimes(model.topology)
        numbers: dict[object, int] = {}
        self._choice = [
            numbers.setdefault(self._layer(index), len(numbers)) for index in range(len(model.graph.operators))
        ]
        firsts = [self._choice.index(choice) for choice in range(len(numbers))]
        self._options = [self._splits(first) for first in firsts]
        self._moved: dict[tuple[int, ...], Table] = {}

    def solve(self) -> OptCNNPartition:
        found = minimise([len(options) for options in self._options], self._terms())
        splits = tuple(self._options[choice][found.options[choice]] for choice in self._choice)
        return OptCNNPartition(splits, round(found.cost), not found.fixed)

    def _layer(self, operator: int) -> tuple[str, tuple[tuple[int, bool], ...]]:
        described = self._model.graph.operators[operator]
        return described.layer or described.name, self._sizes(operator)

    def _sizes(self, operator: int) -> tuple[tuple[int, bool], ...]:
        dimensions = self._model.rules.dimensions(self._model.graph.operators[operator], self._model.graph)
        return tuple((each.size, each.kind is not None) for each in dimensions)

    def _splits(self, operator: int) -> list[Split]:
        devices = range(self._model.topology.num_devices)
        return [
            Split(degrees, each)
            for degrees in degrees_of(self._sizes(operator), len(devices), even=True, num_devices=len(devices))
            for each in itertools.islice(dict.fromkeys(dealt(devices, tuple(n for n in degrees if n > 1))), ORDERS)
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
        """Reducing the gradients of some weights, and the update; as all their readers were split like the first."""
        times = group_times(self._model, group, group.readers[0], split)
        return sum(times.reductions_ns.values()) + max(times.updates_ns.values(), default=0)

    def _moving(self, edge: Edge) -> Table:
        """By splits of both operators: how long it takes to move a tensor, and its gradient back."""
        makers, readers = self._options[self._choice[edge.maker]], self._options[self._choice[edge.reader]]
        key = (
            *(
                id(self._model.tilings.of(edge.maker, makers[0].degrees)),
                id(self._model.tilings.of(edge.reader, readers[0].degrees)),
            ),
            *(edge.output, edge.input, self._choice[edge.maker] == self._choice[edge.reader]),
        )
        if key not in self._moved:
            self._moved[key] = np.array([[self._moving_ns(edge, one, other) for other in readers] for one in makers])
        return self._moved[key]

    def _moving_ns(self, edge: Edge, one: Split, other: Split) -> float:
        made, read = self._model.tilings.of(edge.maker, one.degrees), self._model.tilings.of(edge.reader, other.degrees)
        num_bytes = edge.itemsize * overlaps(made.outputs[edge.output], read.inputs[edge.input])
        times = self._transfers.of(num_bytes, np.array(one.devices)[:, None], np.array(other.devices)[None])
        directions = 1 + edge.is_differentiable
        return float(directions * max(times.sum(axis=0).max(), times.sum(axis=1).max()))
