"""A model and its tilings in the form in which the compiled simulator wants them."""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bow.errors import ScheduleError
from bow.planning.problem.box import Box
from bow.planning.problem.device_topology import NS_PER_US
from bow.planning.problem.step_model import StepModel
from bow.planning.problem.tiling import Tiling

NOBODY = -1
"""Makes what comes with the batch."""

MOST_TILES = 2**16
"""Of an operator: their numbers have 16 bits in what orders the tasks."""


def create_simulator(library: ctypes.CDLL, model: StepModel, update_ns: Any, algorithm: int) -> Any:
    """The library's simulator of a model, as a handle."""
    topology = model.topology
    devices = range(topology.num_devices)
    channels = [topology.channel(number) for number in range(topology.num_channels)]
    routes = [topology.route(a, b) for a in devices for b in devices]
    builder = library.builder(
        topology.num_devices,
        longs(topology.memory_bytes(device) for device in devices),
        len(channels),
        longs(channel.latency_ns for channel in channels),
        np.array([channel.ns_per_byte for channel in channels], np.float64),
        ints(channel for route in routes for channel in route),
        ints(np.cumsum([0, *map(len, routes)])),
        model.overlap,
        round(topology.sum_us * NS_PER_US),
        model.learners,
        model.copies,
    )
    _describe(library, model, builder)
    return library.simulator(builder, update_ns, algorithm)


def groups_of(model: StepModel, operator: int) -> list[int]:
    """The groups of weights that an operator reads, by number."""
    return [number for number, group in enumerate(model.weight_groups) if operator in group.readers]


class NativeTilings:
    """Tells the compiled simulator about tilings when they are first needed.

    Args:
        library: that simulates.
        handle: of the simulator.
        model: of the step.
    """

    def __init__(self, library: ctypes.CDLL, handle: Any, model: StepModel) -> None:
        self._library, self._handle, self._model = library, handle, model
        self._groups = [groups_of(model, index) for index in range(len(model.graph.operators))]
        self._lists: dict[tuple[Box | None, ...], int] = {}
        self._known_parts: dict[tuple[int, tuple[int, ...], int, tuple[int, ...]], list[int]] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}

    def number(self, operator: int, tiling: Tiling) -> int:
        """By which the simulator knows a tiling of an operator."""
        key = operator, tiling.degrees
        if key not in self._numbers:
            self._numbers[key] = self._add(operator, tiling)
        return self._numbers[key]

    def _add(self, operator: int, tiling: Tiling) -> int:
        if tiling.num_tiles > MOST_TILES:
            name = self._model.graph.operators[operator].name
            raise ScheduleError(
                f"operator {name!r} is split into {tiling.num_tiles} tiles; split it into at most {MOST_TILES}"
            )
        has_backward = self._model.has_backward[operator]
        return int(
            self._library.add_tiling(
                self._handle,
                tiling.num_tiles,
                len(tiling.outputs),
                ints(self._boxes(boxes) for boxes in tiling.outputs),
                len(tiling.inputs),
                ints(self._boxes(boxes) for boxes in tiling.inputs),
                longs(tiling.output_bytes),
                longs(size if has_backward else 0 for size in tiling.gradient_bytes),
                len(tiling.sum_bytes),
                ints(tiling.sums),
                longs(tiling.sum_bytes),
                len(self._groups[operator]),
                ints(self._parts(operator, tiling)),
            )
        )

    def _parts(self, operator: int, tiling: Tiling) -> Iterable[int]:
        """By group, by tile: the number of what the tile reads of the group's weights."""
        names = self._model.graph.operators[operator].weights
        for group in self._groups[operator]:
            places = tuple(names.index(name) for name in self._model.weight_groups[group].weights)
            key = group, places, self._model.tilings.alike[operator], tiling.degrees
            if key not in self._known_parts:
                self._known_parts[key] = [self._part(group, boxes, places) for boxes in tiling.weights]
            yield from self._known_parts[key]

    def _part(self, group: int, boxes: Sequence[Box], places: Iterable[int]) -> int:
        bounds = longs(end for place in places for side in boxes[place] for end in side)
        return int(self._library.add_part(self._handle, group, bounds))

    def _boxes(self, boxes: tuple[Box | None, ...]) -> int:
        if boxes not in self._lists:
            rank = max((len(box) for box in boxes if box is not None), default=0)
            nothing: Box = ((0, 0),) * rank
            bounds = longs(end for box in boxes for side in (nothing if box is None else box) for end in side)
            present = np.array([box is not None for box in boxes], np.uint8)
            self._lists[boxes] = self._library.add_boxes(self._handle, len(boxes), rank, bounds, present)
        return self._lists[boxes]


def ints(numbers: Iterable[int]) -> NDArray[np.int32]:
    """Numbers of 32 bits."""
    return np.array([*numbers], np.int32)


def longs(numbers: Iterable[int]) -> NDArray[np.int64]:
    """Numbers of 64 bits."""
    return np.array([*numbers], np.int64)


def _describe(library: ctypes.CDLL, model: StepModel, builder: Any) -> None:
    graph = model.graph
    positions = {number: position for position, number in enumerate(graph.tensors)}
    for number, tensor in graph.tensors.items():
        maker, slot = model.makers.get(number, (NOBODY, 0))
        library.add_tensor(builder, maker, slot, tensor.itemsize, maker != NOBODY and model.flows(number))
    for group in model.weight_groups:
        weights = [graph.weights[name] for name in group.weights]
        ranks, sizes = ints(len(weight.shape) for weight in weights), longs(weight.itemsize for weight in weights)
        library.add_group(builder, len(weights), ranks, sizes, group.trainable)
    for index, operator in enumerate(graph.operators):
        inputs, outputs = (ints(positions[number] for number in of) for of in (operator.inputs, operator.outputs))
        groups = ints(groups_of(model, index))
        has_backward = model.has_backward[index]
        library.add_operator(builder, len(inputs), inputs, len(outputs), outputs, len(groups), groups, has_backward)
