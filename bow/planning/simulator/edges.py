"""What flows between the tiles of two operators."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.box import Box
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph


@dataclass(frozen=True)
class Edge:
    """A tensor that one operator makes and another reads.

    Attributes:
        maker: position of the operator that makes it.
        output: which of its outputs it is.
        reader: position of the operator that reads it.
        input: which of its inputs it is.
        itemsize: bytes of an element.
        is_differentiable: whether a gradient flows back.
    """

    maker: int
    output: int
    reader: int
    input: int
    itemsize: int
    is_differentiable: bool


def edges_of(graph: OperatorGraph) -> Iterator[Edge]:
    """All tensors between operators, by reader; a tensor that an operator reads twice stands there twice."""
    makers = graph.makers
    for reader, operator in enumerate(graph.operators):
        for place, tensor in enumerate(operator.inputs):
            if tensor in makers:
                maker, shape = makers[tensor], graph.tensors[tensor]
                output = graph.operators[maker].outputs.index(tensor)
                yield Edge(maker, output, reader, place, shape.itemsize, shape.differentiable)


def overlaps(made: Sequence[Box], read: Sequence[Box | None]) -> NDArray[np.int64]:
    """How many elements of each box that is made lie in each box that is read, [made, read].

    Example:
        >>> overlaps([((0, 4),), ((4, 8),)], [((0, 3),), ((3, 8),), None]).tolist()
        [[3, 1, 0], [0, 4, 0]]
    """
    if not made or not made[0]:  # scalars: whole, or not read at all
        return np.array([[int(box is not None) for box in read] for _ in made], np.int64).reshape(len(made), len(read))
    nothing = tuple((0, 0) for _ in made[0])
    one = np.array(made, np.int64)[:, None]
    other = np.array([nothing if box is None else box for box in read], np.int64)[None]
    sides = np.minimum(one[..., 1], other[..., 1]) - np.maximum(one[..., 0], other[..., 0])
    common: NDArray[np.int64] = np.maximum(sides, 0).prod(axis=-1)
    return common


class TransferTimes:
    """How long transfers between devices take that have their routes for themselves.

    Args:
        topology: that joins the devices.
    """

    def __init__(self, topology: DeviceTopology) -> None:
        devices = range(topology.num_devices)
        routes = [[[topology.channel(number) for number in topology.route(a, b)] for b in devices] for a in devices]
        self._latency = np.array([[sum(each.latency_ns for each in route) for route in row] for row in routes])
        slowest = [[max((each.ns_per_byte for each in route), default=0.0) for route in row] for row in routes]
        self._ns_per_byte = np.array(slowest)

    def of(
        self, num_bytes: NDArray[np.int64], senders: NDArray[np.int64], receivers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Nanoseconds, rounded down; 0 for nothing, and for what stays on a device."""
        time = self._latency[senders, receivers] + np.floor(num_bytes * self._ns_per_byte[senders, receivers])
        times: NDArray[np.int64] = np.where(num_bytes > 0, time, 0).astype(np.int64)
        return times
