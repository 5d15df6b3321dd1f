"""Proposals simulated from nothing, in Python: slow, and needs no compiler."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.plan_strategy import Partition
from bow.planning.problem.split import Split
from bow.planning.problem.step_model import StepModel
from bow.planning.simulator.full_simulation import TaskTime
from bow.planning.simulator.memory import MemoryPeak
from bow.planning.simulator.proposal_outcome import ProposalOutcome, TooLarge
from bow.planning.simulator.simulation_result import SimulationResult, simulate_model
from bow.planning.simulator.tasks import Identity


class PythonSimulator:
    """A strategy as tasks with times, and changes to it.

    Args:
        model: of the step.
    """

    def __init__(self, model: StepModel) -> None:
        self._model, self._graph_hash = model, model.graph.hash
        self._splits: tuple[Split, ...] = ()
        self._result = self._before = SimulationResult(model, (), (), ())
        self._splits_before: tuple[Split, ...] = ()

    def build(self, splits: Sequence[Split]) -> ProposalOutcome:
        """Simulate a strategy."""
        self._splits = tuple(splits)
        partition = Partition(self._graph_hash, self._splits, self._model.learners)
        self._result = simulate_model(self._model, partition)
        refusal = self._result.refusal
        return None if refusal is None else TooLarge(refusal.device, refusal.needed_bytes)

    def propose(self, changes: Mapping[int, Split], limit_ns: int | None) -> ProposalOutcome:
        """Change the splits of some operators."""
        self._before, self._splits_before = self._result, self._splits
        outcome = self.build([changes.get(operator, split) for operator, split in enumerate(self._splits)])
        if outcome is not None:
            self.undo()
        return outcome

    def accept(self) -> None:
        """Keep what was proposed."""

    def undo(self) -> None:
        """Go back to before it was proposed."""
        self._result, self._splits = self._before, self._splits_before

    @property
    def makespan_ns(self) -> int:
        """When the last task is over."""
        return self._result.makespan_ns

    @property
    def num_looked_at(self) -> int:
        """How many tasks there are: all are looked at, once each."""
        return len(self._result.tasks)

    def times(self) -> dict[Identity, TaskTime]:
        """When every task runs."""
        return {task.identity: time for task, time in zip(self._result.tasks, self._result.times, strict=True)}

    def table(self) -> NDArray[np.int64]:
        """[task, 3]: rank, start and end of each task, in nanoseconds."""
        rows = zip(self._result.tasks, self._result.times, strict=True)
        return np.array([(task.rank, time.start_ns, time.end_ns) for task, time in rows], np.int64).reshape(-1, 3)

    def peaks(self) -> tuple[MemoryPeak, ...]:
        """By device: the most memory that it needs at a time."""
        return self._result.peaks
