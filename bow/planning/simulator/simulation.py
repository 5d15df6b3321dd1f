"""A partition whose time is known, and that can be changed operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bow.errors import ScheduleError
from bow.planning.problem.partition import Partition, Split, illegal
from bow.planning.simulator.native_simulator import Algorithm, NativeSimulator
from bow.planning.simulator.python_simulator import (
    MemoryPeak,
    ProposalOutcome,
    PythonSimulator,
    Refusal,
    SimulationResult,
    TaskTime,
    TooLarge,
    TooSlow,
)
from bow.planning.simulator.step_model import Identity, StepModel
from bow.planning.simulator.task_graph import TaskGraph
from bow.schedule import Timeline


class Simulation:
    """A partition whose time is known, and that can be changed operator by operator."""

    def __init__(
        self,
        model: StepModel,
        partition: Partition,
        algorithm: Algorithm | Literal["python"] = "incremental",
        *,
        must_fit: bool = True,
    ) -> None:
        assert model.learners == partition.learners, "the model has other learners than the partition"
        partition.check(model.graph, model.topology.num_devices, model.rules)
        self.model = model
        self._partition = partition
        self._splits = list(partition.splits)
        self._proposed: Mapping[int, Split] | None = None
        self._legal: set[tuple[int, tuple[int, ...]]] = set()
        self._simulator = PythonSimulator(model) if algorithm == "python" else NativeSimulator(model, algorithm)
        self.refusal = self._refusal(self._simulator.build(self._splits))
        """Why the partition, or the last proposal, does not fit; None where it does."""
        if self.refusal is not None and must_fit:
            raise ScheduleError(f"the partition does not fit: {self.refusal}; split more, or use more devices")

    @property
    def partition(self) -> Partition:
        """The partition as it is, without what is proposed."""
        return Partition(self._partition.graph_hash, tuple(self._splits), self._partition.learners)

    @property
    def makespan_ns(self) -> int:
        return self._simulator.makespan_ns

    @property
    def num_looked_at(self) -> int:
        """How often tasks were looked at for the last proposal: none where it was too slow at first sight."""
        return self._simulator.num_looked_at

    def propose(self, operator: int, split: Split, limit_ns: int | None = None) -> int | None:
        """What a step takes with another split of an operator; see `propose_changes`."""
        return self.propose_changes({operator: split}, limit_ns)

    def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
        """What a step takes with other splits of some operators, by operator; None: it does not fit."""
        # A number above the limit may be less than the time. `undo` follows, or `accept` of what fits the limit.
        if self._proposed is not None:
            raise ScheduleError("a proposal is neither accepted nor undone yet; call accept or undo first")
        for operator, split in changes.items():
            self._check(operator, split)
        outcome = self._simulator.propose(changes, limit_ns)
        self.refusal = self._refusal(outcome)
        if self.refusal is not None:
            return None
        if isinstance(outcome, TooSlow):
            return outcome.least_ns
        self._proposed = changes
        return self._simulator.makespan_ns

    def accept(self) -> None:
        if self._proposed is None:
            raise ScheduleError("there is no proposal to accept; call propose first")
        self._simulator.accept()
        for operator, split in self._proposed.items():
            self._splits[operator] = split
        self._proposed = None

    def undo(self) -> None:
        if self._proposed is not None:
            self._simulator.undo()
        self._proposed = None

    def times(self) -> dict[Identity, TaskTime]:
        """When every task runs: of the proposal while there is one."""
        return self._simulator.times()

    def task_table(self) -> NDArray[np.int64]:
        """[task, 3]: rank, start and end of each task, in nanoseconds; in any order."""
        return self._simulator.table()

    def memory(self) -> tuple[MemoryPeak, ...]:
        return self._simulator.peaks()

    def result(self) -> SimulationResult:
        """All about the step: of the proposal while there is one."""
        splits = list(self._splits)
        for operator, split in (self._proposed or {}).items():
            splits[operator] = split
        partition = Partition(self._partition.graph_hash, tuple(splits), self._partition.learners)
        tasks, times = TaskGraph.of(self.model, partition).tasks, self.times()
        return SimulationResult(
            self.model, tasks, tuple(times[task.identity] for task in tasks), self._simulator.peaks()
        )

    def timeline(self) -> Timeline:
        return self.result().timeline

    def _check(self, operator: int, split: Split) -> None:
        """Once for each degrees, because proposals come in thousands; the devices each time."""
        graph, size = self.model.graph, len(self.model.device_groups[0])
        known = (operator, split.degrees) in self._legal
        if known and len(split.devices) == split.num_tiles and 0 <= min(split.devices) <= max(split.devices) < size:
            return
        wrong = illegal(graph, graph.operators[operator], split, size, self.model.rules)
        if wrong is not None:
            raise ScheduleError(wrong)
        self._legal.add((operator, split.degrees))

    def _refusal(self, outcome: ProposalOutcome) -> Refusal | None:
        if not isinstance(outcome, TooLarge):
            return None
        topology = self.model.topology
        name, available = topology.devices[outcome.device].name, topology.memory_bytes(outcome.device)
        return Refusal(outcome.device, name, outcome.needed_bytes, available)


class IncrementalEvaluator:
    """Simulates one partition after the other by what differs between them."""

    def __init__(self, simulation: Simulation, splits: Sequence[Split]) -> None:
        self._simulation = simulation
        self._splits = list(splits)

    def __call__(self, splits: Sequence[Split], limit_ns: int | None = None) -> int | None:
        """What a step takes, in nanoseconds; None: it does not fit."""
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
