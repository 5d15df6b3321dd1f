"""How long the computing tasks of a strategy take, asked for once for each tile and kind of device."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.box import Box
from bow.planning.problem.device_topology import DeviceKind, DeviceTopology
from bow.planning.problem.tiling import Tiling

Times: TypeAlias = NDArray[np.int64]
"""Nanoseconds, by tile."""


class Costs(Protocol):
    """How long computing tasks take, in nanoseconds.

    Devices of one kind take the same time, and so do operators of equal kind, attributes, sizes and work.
    """

    def forward_ns(self, operator: int, box: Box, device: int) -> int:
        """Of the forward pass of a tile: the box of the operator's first output."""
        ...

    def backward_ns(self, operator: int, box: Box, device: int) -> int:
        """Of the backward pass of a tile."""
        ...

    def update_ns(self, weight_bytes: int, device: int) -> int:
        """Of the optimizer's step for weights of so many bytes."""
        ...


class TaskCosts:
    """Remembers what the costs are, by tile and kind of device.

    Args:
        costs: what is asked.
        topology: the devices.
        alike: by operator: a number that it has in common with those whose tiles take the same time.
    """

    def __init__(self, costs: Costs, topology: DeviceTopology, alike: Sequence[int]) -> None:
        self._costs, self._alike = costs, alike
        numbers: dict[DeviceKind, int] = {}
        self._kinds = [numbers.setdefault(device.kind, len(numbers)) for device in topology.devices]
        self._examples = [self._kinds.index(kind) for kind in range(len(numbers))]
        self._tiles: dict[tuple[int, tuple[int, ...], int], tuple[Times, Times]] = {}
        self._updates: dict[tuple[int, int], int] = {}

    def of_tiles(self, operator: int, tiling: Tiling, devices: Sequence[int]) -> tuple[Times, Times]:
        """How long the tiles' forward and backward passes take."""
        kinds = [self._kinds[device] for device in devices]
        used = sorted(set(kinds))
        if len(used) == 1:
            return self._of_kind(operator, tiling, used[0])
        columns = [self._of_kind(operator, tiling, kind) for kind in used]
        rows = [used.index(kind) for kind in kinds]
        tiles = np.arange(len(kinds))
        forward, backward = (np.stack(of)[rows, tiles] for of in zip(*columns, strict=True))
        return forward, backward

    def update_ns(self, weight_bytes: int, device: int) -> int:
        """How long it takes to update weights of so many bytes."""
        key = weight_bytes, self._kinds[device]
        if key not in self._updates:
            self._updates[key] = self._costs.update_ns(weight_bytes, device)
        return self._updates[key]

    def _of_kind(self, operator: int, tiling: Tiling, kind: int) -> tuple[Times, Times]:
        key = self._alike[operator], tiling.degrees, kind
        if key not in self._tiles:
            device = self._examples[kind]
            self._tiles[key] = (
                np.array([self._costs.forward_ns(operator, box, device) for box in tiling.boxes], np.int64),
                np.array([self._costs.backward_ns(operator, box, device) for box in tiling.boxes], np.int64),
            )
        return self._tiles[key]
