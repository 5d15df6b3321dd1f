"""The compiled simulator: built from `kernels/planner/` when it is first used, and called by way of ctypes."""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from bow.compiling import built, compile_cpp, source_hash
from bow.errors import RuntimeUnavailableError, ScheduleError
from bow.files import Expendable
from bow.planning.problem.box import Box
from bow.planning.problem.device_topology import NS_PER_US
from bow.planning.problem.partition import Split, Tiling
from bow.planning.simulator.costs import TaskCosts
from bow.planning.simulator.python_simulator import MemoryPeak, ProposalOutcome, TaskTime, TooLarge, TooSlow
from bow.planning.simulator.step_model import Identity, StepModel

LIBRARY = "planner.so"
MAIN_SOURCE = "simulator.cpp"
WHAT = "the compiled simulator"

# No fused multiply and add: times are to be equal to the nanosecond to those that Python works out.
FLAGS = ("-shared", "-fPIC", "-std=c++20", "-O3", "-march=native", "-ffp-contract=off")

UPDATE_NS = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
"""How long an update takes, by bytes and device."""

_OBJECT, _INT, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
_INTS, _LONGS, _DOUBLES, _BYTES = (
    np.ctypeslib.ndpointer(dtype, flags="C_CONTIGUOUS") for dtype in (np.int32, np.int64, np.float64, np.uint8)
)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "builder": (_OBJECT, (_INT, _LONGS, _INT, _LONGS, _DOUBLES, _INTS, _INTS, _INT, _LONG, _INT, _DOUBLE)),
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
    """The library, its functions without the prefix `planner_` in their names."""
    found = _attempt()
    if isinstance(found, RuntimeUnavailableError):
        raise RuntimeUnavailableError(*found.args)  # a new one: an error keeps the frames that it went through
    return found


@functools.cache
def _attempt() -> ctypes.CDLL | RuntimeUnavailableError:
    """One attempt a process: what failed once would fail again."""
    try:
        return _load()
    except RuntimeUnavailableError as error:
        return error


def _load() -> ctypes.CDLL:
    folder = Path(next(iter(importlib.import_module("bow.kernels").__path__))) / "planner"
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cpp"))
    key = source_hash(*FLAGS, *(path.name + path.read_text(encoding="utf-8") for path in sources))

    def make(target: Path) -> None:
        print(
            "bow: building the planner's simulator, once on this machine; it takes some seconds",
            file=Expendable(sys.stderr),
        )
        compile_cpp(WHAT, [*FLAGS, str(folder / MAIN_SOURCE), "-o", str(target)])

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


NOBODY = -1  # makes what comes with the batch

MOST_TILES = 2**16  # of an operator: their numbers have 16 bits in what orders the tasks


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
    """Tells the compiled simulator about tilings when they are first needed."""

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
    return np.array([*numbers], np.int32)


def longs(numbers: Iterable[int]) -> NDArray[np.int64]:
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


Algorithm: TypeAlias = Literal["delta", "incremental", "full"]
"""How proposals are simulated:

* `delta` edits the tasks and looks at those that may run at another time (paper, Algorithm 2);
* `incremental` edits the tasks and works out all times from nothing;
* `full` builds all tasks and works out all times from nothing (paper, Algorithm 1).
"""

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)  # by the number by which the library knows them

FITS, TOO_SLOW = -1, -2
NO_LIMIT = 2**63 - 1
TASK_COLUMNS = 5  # order, code, ready, start and end of a task


class NativeSimulator:
    """A partition as tasks with times, and changes to it, in C++: see `kernels/planner/`."""

    def __init__(self, model: StepModel, algorithm: Algorithm) -> None:
        self._model = model
        self._library = library()
        self._updates = _Updates(model.costs)
        self._update_ns = UPDATE_NS(self._updates)  # lives as long as the simulator, which calls it
        self._handle = create_simulator(self._library, model, self._update_ns, ALGORITHMS.index(algorithm))
        self._tilings = NativeTilings(self._library, self._handle, model)
        self._needed = np.zeros(1, np.int64)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._library.delete(self._handle)

    def build(self, splits: Sequence[Split]) -> ProposalOutcome:
        self._stage(dict(enumerate(splits)))
        code = self._library.build(self._handle, self._needed)
        self._updates.check()
        return self._outcome(code)

    def propose(self, changes: Mapping[int, Split], limit_ns: int | None) -> ProposalOutcome:
        self._stage(changes)
        code = self._library.propose(self._handle, NO_LIMIT if limit_ns is None else limit_ns, self._needed)
        try:
            self._updates.check()
        except BaseException:
            if code == FITS:
                self.undo()
            raise
        return self._outcome(code)

    def accept(self) -> None:
        self._library.accept(self._handle)

    def undo(self) -> None:
        self._library.undo(self._handle)

    @property
    def makespan_ns(self) -> int:
        return int(self._library.makespan(self._handle))

    @property
    def num_looked_at(self) -> int:
        return int(self._library.num_looked_at(self._handle))

    def times(self) -> dict[Identity, TaskTime]:
        table = self._tasks()
        return {
            (order >> 32, order >> 16 & 0xFFFF, order & 0xFFFF, code % 2**64): TaskTime(ready, start, end)
            for order, code, ready, start, end in table.tolist()
        }

    def table(self) -> NDArray[np.int64]:
        order, _, _, start, end = self._tasks().T
        return np.stack([order >> 32, start, end], axis=1)

    def peaks(self) -> tuple[MemoryPeak, ...]:
        found = np.zeros((self._model.topology.num_devices, 2), np.int64)
        self._library.peaks(self._handle, found)
        return tuple(MemoryPeak(*peak) for peak in found.tolist())

    def _tasks(self) -> NDArray[np.int64]:
        """[task, column]: order, code, ready, start and end."""
        table = np.zeros((self._library.num_tasks(self._handle), TASK_COLUMNS), np.int64)
        self._library.tasks(self._handle, table)
        return table

    def _outcome(self, code: int) -> ProposalOutcome:
        needed = int(self._needed[0])
        if code == FITS:
            return None
        return TooSlow(needed) if code == TOO_SLOW else TooLarge(code, needed)

    def _stage(self, splits: Mapping[int, Split]) -> None:
        """Tell the library what it is to build next: all of it or, where something is wrong with it, nothing."""
        if not splits:
            return
        tilings = [self._model.tilings.of(operator, split.degrees) for operator, split in splits.items()]
        pairs = [*zip(splits, tilings, strict=True)]
        times = [self._model.costs.of_tiles(operator, tiling, splits[operator].devices) for operator, tiling in pairs]
        operators = np.fromiter(splits, np.int32, len(splits))
        numbers = ints(self._tilings.number(operator, tiling) for operator, tiling in pairs)
        num_tiles = ints(tiling.num_tiles for tiling in tilings)
        devices = ints(itertools.chain.from_iterable(split.devices for split in splits.values()))
        forward, backward = (np.concatenate(of) for of in zip(*times, strict=True))
        for learner, group in enumerate(self._model.device_groups):
            ours = operators + np.int32(learner * len(self._model.graph.operators))
            there = devices + np.int32(group[0])
            self._library.stage(self._handle, len(splits), ours, numbers, num_tiles, there, forward, backward)


class _Updates:
    """How long updates take, for the library to ask."""

    # Nothing can be raised through the library; it goes on with any time, and `check` raises the error afterwards.

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
        """Raise what was raised since the last time."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
