"""Incremental simulation of a partition in C++: `kernels/planner/` is built on first use and called by ctypes."""

from __future__ import annotations

import ctypes
import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from bow.compiling import built, compile_cpp, loaded_once, source_hash
from bow.errors import RuntimeUnavailableError, ScheduleError
from bow.planning.problem.box import Box
from bow.planning.problem.device_topology import NS_PER_US
from bow.planning.problem.partition import Partition, Split, Tiling, why_invalid
from bow.planning.simulator.costs import TaskCosts
from bow.planning.simulator.python_simulator import Refusal
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


@loaded_once
def library() -> ctypes.CDLL:
    """Load the library; its functions lose their prefix `planner_`."""
    folder = Path(next(iter(importlib.import_module("bow.kernels").__path__))) / "planner"
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cpp"))
    key = source_hash(*FLAGS, *(path.name + path.read_text(encoding="utf-8") for path in sources))

    def make(target: Path) -> None:
        compile_cpp(WHAT, [*FLAGS, str(folder / MAIN_SOURCE)], target, takes="some seconds")

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
        self._raised: BaseException | None = None

    def __call__(self, weight_bytes: int, device: int) -> int:
        try:
            return self._costs.update_ns(weight_bytes, device)
        except BaseException as error:  # also Ctrl-C, which ctypes would ignore
            self._raised = error
            return 0

    def check(self) -> None:
        """Raise the exception stored since the last call, if any."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised


FITS, TOO_SLOW = -1, -2  # other codes: the device whose memory is too small
NO_LIMIT = 2**63 - 1
TASK_COLUMNS = 5  # order, code, ready, start and end of a task


class Simulation:
    """A simulated partition whose splits can be changed operator by operator."""

    def __init__(
        self, model: StepModel, partition: Partition, algorithm: Algorithm = "incremental", *, must_fit: bool = True
    ) -> None:
        assert model.learners == partition.learners, "the model has other learners than the partition"
        partition.check(model.graph, model.topology.num_devices, model.rules)
        self.model, self.partition = model, partition  # without the pending proposal
        self._proposed: Mapping[int, Split] | None = None
        self._legal: set[tuple[int, tuple[int, ...]]] = set()
        self._library = library()
        self._updates = UpdateTimeCallback(model.costs)
        self._update_ns = UPDATE_NS(self._updates)  # lives as long as the simulator, which calls it
        self._handle = create_simulator(self._library, model, self._update_ns, ALGORITHMS.index(algorithm))
        self._tilings = NativeTilings(self._library, self._handle, model)
        self._needed = np.zeros(1, np.int64)
        self._stage(dict(enumerate(partition.splits)))
        code = self._library.build(self._handle, self._needed)
        self._updates.check()
        self.refusal = self._refusal(code)  # why the partition, or the last proposal, does not fit
        if self.refusal is not None and must_fit:
            raise ScheduleError(f"the partition does not fit: {self.refusal}; split more, or use more devices")

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._library.delete(self._handle)

    @property
    def splits(self) -> tuple[Split, ...]:
        return self.partition.splits

    @property
    def makespan_ns(self) -> int:
        return int(self._library.makespan(self._handle))

    @property
    def num_looked_at(self) -> int:
        """Number of task visits for the last proposal; 0 if it was rejected by a bound."""
        return int(self._library.num_looked_at(self._handle))

    def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
        """Return the step time with other splits of some operators; None: does not fit."""
        # A result above the limit is only a lower bound. Call `undo` next, or `accept` if the result is within the
        # limit.
        if self._proposed is not None:
            raise ScheduleError("a proposal is neither accepted nor undone yet; call accept or undo first")
        for operator, split in changes.items():
            self._check(operator, split)
        self._stage(changes)
        code = self._library.propose(self._handle, NO_LIMIT if limit_ns is None else limit_ns, self._needed)
        try:
            self._updates.check()
        except BaseException:
            if code == FITS:
                self._library.undo(self._handle)
            raise
        self.refusal = self._refusal(code)
        if code == FITS:
            self._proposed = changes
            return self.makespan_ns
        return int(self._needed[0]) if code == TOO_SLOW else None

    def evaluate(self, splits: Sequence[Split], limit_ns: int | None = None) -> int | None:
        """Return the step time with these splits, which stay if they are within the limit; None: does not fit."""
        pairs = enumerate(zip(self.splits, splits, strict=True))
        makespan = self.propose_changes({operator: new for operator, (old, new) in pairs if new != old}, limit_ns)
        if makespan is None or (limit_ns is not None and makespan > limit_ns):
            self.undo()
        else:
            self.accept()
        return makespan

    def accept(self) -> None:
        if self._proposed is None:
            raise ScheduleError("there is no proposal to accept; call propose_changes first")
        self._library.accept(self._handle)
        splits = list(self.splits)
        for operator, split in self._proposed.items():
            splits[operator] = split
        self.partition, self._proposed = replace(self.partition, splits=tuple(splits)), None

    def undo(self) -> None:
        if self._proposed is not None:
            self._library.undo(self._handle)
        self._proposed = None

    def tasks(self) -> NDArray[np.int64]:
        """Return [task, column]: order, code, ready, start and end; of the pending proposal, if any."""
        table = np.zeros((self._library.num_tasks(self._handle), TASK_COLUMNS), np.int64)
        self._library.tasks(self._handle, table)
        return table

    def task_table(self) -> NDArray[np.int64]:
        """Return [task, 3]: rank, start and end of each task, in nanoseconds; in any order."""
        order, _, _, start, end = self.tasks().T
        return np.stack([order >> 32, start, end], axis=1)

    def peaks(self) -> tuple[int, ...]:
        found = np.zeros(self.model.topology.num_devices, np.int64)
        self._library.peaks(self._handle, found)
        return tuple(found.tolist())

    def _refusal(self, code: int) -> Refusal | None:
        return Refusal.of(self.model.topology, code, int(self._needed[0])) if code >= 0 else None

    def _stage(self, splits: Mapping[int, Split]) -> None:
        """Pass splits to the library; whatever can raise comes before the first call."""
        if not splits:
            return
        tilings = [self.model.tilings.of(operator, split.degrees) for operator, split in splits.items()]
        pairs = [*zip(splits, tilings, strict=True)]
        times = [self.model.costs.of_tiles(operator, tiling, splits[operator].devices) for operator, tiling in pairs]
        operators = np.fromiter(splits, np.int32, len(splits))
        numbers = ints(self._tilings.number(operator, tiling) for operator, tiling in pairs)
        num_tiles = ints(tiling.num_tiles for tiling in tilings)
        devices = ints(itertools.chain.from_iterable(split.devices for split in splits.values()))
        forward, backward = (np.concatenate(of) for of in zip(*times, strict=True))
        for learner, group in enumerate(self.model.device_groups):
            ours = operators + np.int32(learner * len(self.model.graph.operators))
            there = devices + np.int32(group[0])
            self._library.stage(self._handle, len(splits), ours, numbers, num_tiles, there, forward, backward)

    def _check(self, operator: int, split: Split) -> None:
        """Check a split; legality is cached by degrees, devices are checked every time."""
        graph, size = self.model.graph, len(self.model.device_groups[0])
        known = (operator, split.degrees) in self._legal
        if known and len(split.devices) == split.num_tiles and 0 <= min(split.devices) <= max(split.devices) < size:
            return
        wrong = why_invalid(graph, graph.operators[operator], split, size, self.model.rules)
        if wrong is not None:
            raise ScheduleError(wrong)
        self._legal.add((operator, split.degrees))
