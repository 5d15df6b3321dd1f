"""Times of tiles that were measured, and how those that were not follow from them."""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bow.errors import ScheduleError
from bow.files import write_whole
from bow.planning.problem.box import Box, whole
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.rules.rule import Rules
from bow.planning.simulator.costs import RooflineCosts, tile_key

FORMAT = "bow tile times"
VERSION = 2


@dataclass(frozen=True)
class TileTime:
    """How long a tile takes."""

    forward_ns: int
    backward_ns: int

    @property
    def total_ns(self) -> int:
        return self.forward_ns + self.backward_ns


@dataclass
class TileTimes:
    """What was measured, once for each operator, tile shape and kind of device."""

    tiles: dict[str, TileTime] = field(default_factory=dict)  # by `tile_key`
    # by hash of a graph: nanoseconds of its weights' update, for each byte of them
    updates: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        data = {
            "tiles": {key: [time.forward_ns, time.backward_ns] for key, time in self.tiles.items()},
            "updates": self.updates,
        }
        return json.dumps({"format": FORMAT, "version": VERSION, **data})

    @classmethod
    def from_json(cls, text: str) -> "TileTimes":
        try:
            read: Any = json.loads(text)
            is_ours = read["format"] == FORMAT and read["version"] == VERSION
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ScheduleError(f"tile times are damaged ({type(error).__name__}: {error}); measure again") from error
        if not is_ours:
            raise ScheduleError(f'the text is not "{FORMAT}" of version {VERSION}; measure again')
        try:
            tiles = {key: TileTime(int(forward), int(backward)) for key, (forward, backward) in read["tiles"].items()}
            updates = {graph: float(time) for graph, time in read["updates"].items()}
            if not all(0 <= time < math.inf for time in updates.values()):
                raise ValueError("the time of an update is below 0 or not finite")
            if not all(min(time.forward_ns, time.backward_ns) >= 0 for time in tiles.values()):
                raise ValueError("the time of a tile is below 0")
            return cls(tiles, updates)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ScheduleError(f"tile times are damaged ({type(error).__name__}: {error}); measure again") from error

    def save(self, path: Path) -> None:
        """Write the times, in one go: a process that reads meanwhile finds the old ones or the new ones."""
        write_whole(path, self.to_json())


def scaled(tiles: Mapping[str, TileTime], factor: float) -> dict[str, TileTime]:
    """Times of tiles that take so many times as long."""
    return {
        key: TileTime(round(factor * time.forward_ns), round(factor * time.backward_ns)) for key, time in tiles.items()
    }


class MeasuredCosts:
    """Measured times where there are some, and the roofline's elsewhere, corrected by how far it was off.

    A tile that was not measured takes the roofline's time, times what the measured time of the whole operator is of the
    roofline's; where that was not measured either, times the geometric mean of this over all operators of the graph.
    """

    def __init__(
        self, graph: OperatorGraph, rules: Rules, topology: DeviceTopology, times: Mapping[str, TileTimes]
    ) -> None:
        self._graph, self._rules, self._topology, self._times = graph, rules, topology, times
        self._roofline = RooflineCosts(graph, rules, topology)
        self._found: dict[tuple[int, Box, str], TileTime] = {}
        self._keys: dict[tuple[int, Box], str] = {}
        self._factors: dict[str, dict[int, float]] = {}

    def forward_ns(self, operator: int, box: Box, device: int) -> int:
        return self._time(operator, box, device).forward_ns

    def backward_ns(self, operator: int, box: Box, device: int) -> int:
        return self._time(operator, box, device).backward_ns

    def update_ns(self, weight_bytes: int, device: int) -> int:
        times = self._times.get(self._topology.devices[device].kind.name)
        if times is None or self._graph.hash not in times.updates:
            return self._roofline.update_ns(weight_bytes, device)
        return round(times.updates[self._graph.hash] * weight_bytes)

    def is_measured(self, operator: int, box: Box, device: int) -> bool:
        """Whether a tile was measured on this kind of device."""
        times = self._times.get(self._topology.devices[device].kind.name)
        return times is not None and self._key(operator, box) in times.tiles

    def _time(self, operator: int, box: Box, device: int) -> TileTime:
        kind = self._topology.devices[device].kind.name
        found = operator, box, kind
        if found not in self._found:
            times = self._times.get(kind)
            measured = None if times is None else times.tiles.get(self._key(operator, box))
            self._found[found] = measured or self._scaled(operator, box, device)
        return self._found[found]

    def _scaled(self, operator: int, box: Box, device: int) -> TileTime:
        kind = self._topology.devices[device].kind.name
        if kind not in self._factors:
            self._factors[kind] = self._ratios(device)
        factors = self._factors[kind]
        factor = factors.get(operator) or _geometric_mean(factors.values())
        return TileTime(
            round(factor * self._roofline.forward_ns(operator, box, device)),
            round(factor * self._roofline.backward_ns(operator, box, device)),
        )

    def _ratios(self, device: int) -> dict[int, float]:
        """By operator that was measured whole: how many times as long as predicted it takes."""
        times = self._times.get(self._topology.devices[device].kind.name, TileTimes())
        ratios = {}
        for number, operator in enumerate(self._graph.operators):
            box = whole(self._graph.output_shape(operator))
            measured = times.tiles.get(self._key(number, box))
            predicted = self._roofline.forward_ns(number, box, device) + self._roofline.backward_ns(number, box, device)
            if measured is not None and predicted and measured.total_ns:
                ratios[number] = measured.total_ns / predicted
        return ratios

    def _key(self, operator: int, box: Box) -> str:
        key = operator, box
        if key not in self._keys:
            self._keys[key] = tile_key(self._graph, self._rules, self._graph.operators[operator], box)
        return self._keys[key]


def _geometric_mean(values: Collection[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 1.0
