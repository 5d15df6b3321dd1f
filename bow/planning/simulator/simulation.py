"""Incremental simulation of a partition, implemented in C++ in `kernels/planner/`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bow.errors import ScheduleError
from bow.planning.problem.partition import Partition, Split, why_invalid
from bow.planning.simulator.native_simulator import (
    ALGORITHMS,
    UPDATE_NS,
    Algorithm,
    NativeTilings,
    UpdateTimeCallback,
    create_simulator,
    ints,
    library,
)
from bow.planning.simulator.python_simulator import Refusal
from bow.planning.simulator.step_model import StepModel

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

    def accept(self) -> None:
        if self._proposed is None:
            raise ScheduleError("there is no proposal to accept; call propose_changes first")
        self._library.accept(self._handle)
        splits = list(self.partition.splits)
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


class IncrementalEvaluator:
    """Evaluates successive partitions by their differences."""

    def __init__(self, simulation: Simulation, splits: Sequence[Split]) -> None:
        self._simulation = simulation
        self._splits = list(splits)

    def __call__(self, splits: Sequence[Split], limit_ns: int | None = None) -> int | None:
        """Return the step time in nanoseconds; None: does not fit."""
        pairs = enumerate(zip(self._splits, splits, strict=True))
        changes = {operator: new for operator, (old, new) in pairs if new != old}
        if not changes:
            return self._simulation.makespan_ns
        makespan = self._simulation.propose_changes(changes, limit_ns)
        if makespan is None or (limit_ns is not None and makespan > limit_ns):
            self._simulation.undo()
        else:
            self._simulation.accept()
            self._splits = list(splits)
        return makespan
