"""ctypes bindings of the compiled simulator, built from `kernels/planner/` on first use."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from bow.compiling import built, compile_cpp, source_hash
from bow.errors import RuntimeUnavailableError, ScheduleError
from bow.planning.problem.box import Box
from bow.planning.problem.device_topology import NS_PER_US
from bow.planning.problem.partition import Tiling
from bow.planning.simulator.costs import TaskCosts
from bow.planning.simulator.step_model import StepModel

LIBRARY = "planner.so"
MAIN_SOURCE = "simulator.cpp"
WHAT = "the planner's simulator"

# No fused multiply-add: times must equal those of the Python simulator to the nanosecond.
FLAGS = ("-shared", "-fPIC", "-std=c++20", "-O3", "-march=native", "-ffp-contract=off")
UPDATE_NS = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)  # (bytes, device) -> ns of an update

_OBJECT, _INT, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
_INTS, _LONGS, _DOUBLES, _BYTES = (
    np.ctypeslib.ndpointer(dtype, flags="C_CONTIGUOUS") for dtype in (np.int32, np.int64, np.float64, np.uint8)
)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "builder": (_OBJECT, (_INT, _LONGS, _INT, _LONGS, _DOUBLES, _INTS, _INTS, _INT, _INT, _LONG, _INT, _DOUBLE)),
    "add_tensor": (None, (_OBJECT, _INT, _INT, _LONG, _INT)),
    "add_group": (None, (_OBJECT, _INT, _INTS, _LONGS, _INT)),
    "add_operator": (None, (_OBJECT, _INT, _INTS, _INT, _INTS, _INT, _INTS, _INT)),
    "simulator": (_OBJECT, (_OBJECT, UPDATE_NS, _INT)),
    "delete": (None, (_OBJECT,)),
    "add_boxes": (_INT, (_OBJECT, _INT, _INT, _LONGS, _BYTES)),
    "add_part": (_INT, (_OBJECT, _INT, _LONGS)),
    "add_tiling": (
        _INT,
        (_OBJECT, _INT, _INT, _INTS, _INT, _INTS, _LONGS, _LONGS, _INT, _INTS, _LONGS, _INT, _INTS),
    ),
    "stage": (None, (_OBJECT, _INT, _INTS, _INTS, _INTS, _INTS, _LONGS, _LONGS)),
    "build": (_INT, (_OBJECT, _LONGS)),
    "propose": (_INT, (_OBJECT, _LONG, _LONGS)),
    "accept": (None, (_OBJECT,)),
    "undo": (None, (_OBJECT,)),
    "makespan": (_LONG, (_OBJECT,)),
    "num_looked_at": (_LONG, (_OBJECT,)),
    "num_tasks": (_INT, (_OBJECT,)),
    "tasks": (None, (_OBJECT, _LONGS)),
    "peaks": (None, (_OBJECT, _LONGS)),
}


def library() -> ctypes.CDLL:
    """Load the library; its functions lose their prefix `planner_`."""
    found = _load_once()
    if isinstance(found, RuntimeUnavailableError):
        raise RuntimeUnavailableError(*found.args)  # a new one: an error keeps the frames it went through
    return found


@functools.cache
def _load_once() -> ctypes.CDLL | RuntimeUnavailableError:
    """Load once per process: a failed attempt would fail again."""
    try:
        return _load()
    except RuntimeUnavailableError as error:
        return error


def _load() -> ctypes.CDLL:
    folder = Path(next(iter(importlib.import_module("bow.kernels").__path__))) / "planner"
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cpp"))
    key = source_hash(*FLAGS, *(path.name + path.read_text(encoding="utf-8") for path in sources))

    def make(target: Path) -> None:
        compile_cpp(WHAT, [*FLAGS, str(folder / MAIN_SOURCE), "-o", str(target)], takes="some seconds")

    path = built(f"planner-{key}", LIBRARY, make)
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeUnavailableError(
            f"{WHAT} cannot be loaded ({error}); delete {path.parent} and try again"
        ) from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, f"planner_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(loaded, name, function)
    return loaded


NO_MAKER = -1  # maker of the batch's tensors
MAX_TILES = 2**16  # per operator: tile numbers have 16 bits in the key that orders tasks


def create_simulator(library: ctypes.CDLL, model: StepModel, update_ns: Any, algorithm: int) -> Any:
    topology = model.topology
    devices = range(topology.num_devices)
    channels = topology.channels
    routes = [topology.route(a, b) for a in devices for b in devices]
    builder = library.builder(
        topology.num_devices,
        longs(topology.memory_bytes(device) for device in devices),
        len(channels),
        longs(channel.latency_ns for channel in channels),
        np.array([channel.ns_per_byte for channel in channels], np.float64),
        ints(channel for route in routes for channel in route),
        ints(np.cumsum([0, *map(len, routes)])),
        topology.overlap,
        topology.passing,
        round(topology.sum_us * NS_PER_US),
        model.learners,
        model.bytes_per_weight_byte,
    )
    _describe(library, model, builder)
    return library.simulator(builder, update_ns, algorithm)


class NativeTilings:
    """Registers tilings with the compiled simulator on first use."""

    def __init__(self, library: ctypes.CDLL, handle: Any, model: StepModel) -> None:
        self._library, self._handle, self._model = library, handle, model
        self._lists: dict[tuple[Box | None, ...], int] = {}
        self._known_parts: dict[tuple[int, tuple[int, ...], int, tuple[int, ...]], list[int]] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}

    def number(self, operator: int, tiling: Tiling) -> int:
        key = operator, tiling.degrees
        if key not in self._numbers:
            self._numbers[key] = self._add(operator, tiling)
        return self._numbers[key]

    def _add(self, operator: int, tiling: Tiling) -> int:
        if tiling.num_tiles > MAX_TILES:
            name = self._model.graph.operators[operator].name
            raise ScheduleError(
                f"operator {name!r} is split into {tiling.num_tiles} tiles; split it into at most {MAX_TILES}"
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
                len(self._model.groups_read[operator]),
                ints(self._parts(operator, tiling)),
            )
        )

    def _parts(self, operator: int, tiling: Tiling) -> Iterable[int]:
        """Yield by group and tile: the number of the group's part that the tile reads."""
        names = self._model.graph.operators[operator].weights
        for group in self._model.groups_read[operator]:
            places = tuple(names.index(name) for name in self._model.weight_groups[group].weights)
            key = group, places, self._model.tilings.signature_ids[operator], tiling.degrees
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
    return np.array([*numbers], np.int32)


def longs(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.array([*numbers], np.int64)


def _describe(library: ctypes.CDLL, model: StepModel, builder: Any) -> None:
    graph = model.graph
    positions = {number: position for position, number in enumerate(graph.tensors)}
    for number, tensor in graph.tensors.items():
        maker, slot = graph.makers.get(number, (NO_MAKER, 0))
        library.add_tensor(builder, maker, slot, tensor.itemsize, maker != NO_MAKER and model.has_gradient(number))
    for group in model.weight_groups:
        weights = [graph.weights[name] for name in group.weights]
        ranks, sizes = ints(len(weight.shape) for weight in weights), longs(weight.itemsize for weight in weights)
        library.add_group(builder, len(weights), ranks, sizes, group.trainable)
    for index, operator in enumerate(graph.operators):
        inputs, outputs = (ints(positions[number] for number in of) for of in (operator.inputs, operator.outputs))
        groups = ints(model.groups_read[index])
        has_backward = model.has_backward[index]
        library.add_operator(builder, len(inputs), inputs, len(outputs), outputs, len(groups), groups, has_backward)


Algorithm: TypeAlias = Literal["delta", "incremental", "full"]
"""Simulation algorithm of proposals:

* `delta` edits the tasks and recomputes only times that may change (paper, Algorithm 2);
* `incremental` edits the tasks and recomputes all times;
* `full` rebuilds all tasks and recomputes all times (paper, Algorithm 1).
"""

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)  # by the library's number of the algorithm


class UpdateTimeCallback:
    """Callback that returns update times to the library."""

    # Exceptions cannot pass through the library; it continues with any time, and `check` raises the error afterwards.

    def __init__(self, costs: TaskCosts) -> None:
        self._costs = costs
        self._raised: Exception | None = None

    def __call__(self, weight_bytes: int, device: int) -> int:
        try:
            return self._costs.update_ns(weight_bytes, device)
        except Exception as error:
            self._raised = error
            return 0

    def check(self) -> None:
        """Raise the exception stored since the last call, if any."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
