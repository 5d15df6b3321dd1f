"""A host thread and a stream for every learner."""

import weakref
from collections.abc import Callable, Sequence

import torch

from bow.devices import StreamDevice, available_cores
from bow.engines.cuda.ahead import LearnersAhead
from bow.engines.cuda.feed import Fed, Given
from bow.engines.cuda.learner import StreamLearner
from bow.engines.outcome import TaskSettings
from bow.engines.place import Crew, num_threads
from bow.replicas import LearnerGroup
from bow.schedule.scheduler import Learn, Run, TaskScheduler
from bow.sync import Synchroniser


class CudaStreams(LearnersAhead):
    """Issues every learner's operators from a thread of its own: for models that cannot be captured.

    A thread has library handles of its own (cuDNN's and cuBLAS's belong to the thread that uses them), what it
    allocates belongs to its learner's stream, and backward runs on it and not on torch's one thread for the device.
    Where the learning task draws random numbers, tasks are issued one at a time, so that each draws its own.

    Python issues one operator at a time, whatever the number of threads: small models want engine `graph`.

    Args:
        group, sync, settings, device: as for every engine of a device with streams.
        pin: whether threads stay on the cores that are nearest to the device.

    References:
        Budea, TensorBow, 2019, sections 4.1 to 4.3 and 5.4.
    """

    name = "streams"
    replays = False

    def __init__(
        self,
        group: LearnerGroup,
        sync: Synchroniser,
        settings: TaskSettings,
        device: StreamDevice | None = None,
        *,
        pin: bool = True,
    ) -> None:
        self._pin = pin
        self._crew: Crew | None = None
        super().__init__(group, sync, settings, device)

    def capture(self, given: Given) -> None:
        """Find out whether learning tasks draw random numbers."""
        self.fork()
        with num_threads(1):  # as on the learners' threads: what is compiled is compiled for a number of threads
            draws = self.learners[0].try_out(given, self.issued, strictly=False)
        if not draws:
            for learner in self.learners:
                learner.drawless.add(given.shape)

    def issue_learning(self, slot: int, fed: Fed, due: bool) -> None:
        """Issue every learner's part of the round from its own thread."""
        self.issue_side_by_side(fed, self.results.rows_of_learners(slot), due, self.learn_one)

    def for_each(self, issue: Callable[[StreamLearner], None]) -> None:
        """Issue something for each learner on its thread; when it returns, everything has been issued."""
        learners = self.learners

        def execute(run: Run) -> None:
            assert isinstance(run.task, Learn)
            with torch.no_grad(), self.device.issuing():
                issue(learners[run.task.learner])

        scheduler = TaskScheduler(len(learners), len(learners))
        runs = scheduler.start([[True] * len(learners)], synchronise=False)
        self._seated().run(scheduler, runs, execute)

    def run_tasks(self, scheduler: TaskScheduler, runs: Sequence[Run], issue: Callable[[Learn], StreamLearner]) -> None:
        """Issue each task from the thread of its place, which waits until the device has ended it."""

        def execute(run: Run) -> None:
            assert isinstance(run.task, Learn)
            issue(run.task).through.synchronize()

        self._seated().run(scheduler, runs, execute)

    def close(self) -> None:
        """Wait for the device, and end the threads; the next round starts them again."""
        try:
            super().close()
        finally:
            if self._crew is not None:
                self._crew.close()

    def _bind(self) -> None:
        super()._bind()
        if self._crew is not None and len(self._crew) != len(self.learners):
            self._crew.close()
            self._forgotten.detach()
            self._crew = None

    def _seated(self) -> Crew:
        if self._crew is None:
            cores = self.device.cores() if self._pin else available_cores()
            self._crew = Crew([cores] * len(self.learners), threads=1)
            self._forgotten = weakref.finalize(self, self._crew.dismiss)  # nobody has to remember `close`
        return self._crew
