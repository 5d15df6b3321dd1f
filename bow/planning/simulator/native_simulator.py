"""The compiled simulator as an object."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.split import Split
from bow.planning.problem.step_model import StepModel
from bow.planning.simulator.full_simulation import TaskTime
from bow.planning.simulator.memory import MemoryPeak
from bow.planning.simulator.native_library import UPDATE_NS, library
from bow.planning.simulator.native_tilings import NativeTilings, create_simulator, ints
from bow.planning.simulator.proposal_outcome import ProposalOutcome, TooLarge, TooSlow
from bow.planning.simulator.task_costs import TaskCosts
from bow.planning.simulator.tasks import Identity

Algorithm: TypeAlias = Literal["delta", "incremental", "full"]
"""How proposals are simulated:

* `delta` edits the tasks and looks at those that may run at another time (paper, Algorithm 2);
* `incremental` edits the tasks and works out all times from nothing;
* `full` builds all tasks and works out all times from nothing (paper, Algorithm 1).
"""

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
"""By the number by which the library knows them."""

FITS, TOO_SLOW = -1, -2
NO_LIMIT = 2**63 - 1
TASK_COLUMNS = 5
"""Order, code, ready, start and end of a task."""


class NativeSimulator:
    """A strategy as tasks with times, and changes to it, in C++: see `kernels/planner/`.

    Args:
        model: of the step.
        algorithm: how proposals are simulated.

    Raises:
        RuntimeUnavailableError: it cannot be compiled here.
    """

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
        """Simulate a strategy from nothing."""
        self._stage(dict(enumerate(splits)))
        code = self._library.build(self._handle, self._needed)
        self._updates.check()
        return self._outcome(code)

    def propose(self, changes: Mapping[int, Split], limit_ns: int | None) -> ProposalOutcome:
        """Change the splits of some operators."""
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
        """Keep what was proposed."""
        self._library.accept(self._handle)

    def undo(self) -> None:
        """Go back to before it was proposed."""
        self._library.undo(self._handle)

    @property
    def makespan_ns(self) -> int:
        """When the last task is over."""
        return int(self._library.makespan(self._handle))

    @property
    def num_looked_at(self) -> int:
        """How often tasks were looked at for the last proposal."""
        return int(self._library.num_looked_at(self._handle))

    def times(self) -> dict[Identity, TaskTime]:
        """When every task runs."""
        table = self._tasks()
        return {
            (order >> 32, order >> 16 & 0xFFFF, order & 0xFFFF, code % 2**64): TaskTime(ready, start, end)
            for order, code, ready, start, end in table.tolist()
        }

    def table(self) -> NDArray[np.int64]:
        """[task, 3]: rank, start and end of each task, in nanoseconds."""
        order, _, _, start, end = self._tasks().T
        return np.stack([order >> 32, start, end], axis=1)

    def peaks(self) -> tuple[MemoryPeak, ...]:
        """By device: the most memory that it needs at a time."""
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
    """How long updates take, for the library to ask.

    Nothing can be raised through the library; it goes on with any time, and whoever called it is told afterwards.
    """

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
