"""A host thread and a stream for every learner."""

import weakref
from collections.abc import Callable, Sequence

import torch

from bow.devices import num_threads
from bow.engines.batches import FlatBatch
from bow.engines.cuda.context import StreamContext
from bow.engines.cuda.learner import StreamLearner
from bow.engines.cuda.runner import AheadDeviceRunner, issue_in_parallel
from bow.engines.cuda.transfers import DeviceBatches
from bow.engines.task_scheduler import Learn, TaskScheduler, TaskStart
from bow.engines.thread_pool import ThreadPool


class CudaStreams(AheadDeviceRunner):
    """Issue every learner's operators from its own thread: for models that cannot be captured."""

    # A thread has its own library handles (cuDNN's and cuBLAS's are per thread), its allocations belong to its
    # learner's stream, and backward runs on it and not on torch's one thread for the device. Where tasks draw random
    # numbers they are issued one at a time, so that each draws its own. The design is that of Budea, TensorBow, 2019,
    # sections 4.1 to 4.3.

    name = "streams"
    replays = False

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        self._pool: ThreadPool | None = None

    def capture(self, batch: FlatBatch) -> None:
        context = self.context
        context.fork()
        with num_threads(1):  # as on the learners' threads: code is compiled for a number of threads
            draws = context.learners[0].try_out(batch, context.order.issued, strictly=False)
        if not draws:
            for learner in context.learners:
                learner.shapes_without_random.add(batch.signature)

    def issue(self, slot: int, batches: DeviceBatches, due: bool) -> None:
        context = self.context
        issue_in_parallel(context, batches, context.results.rows_of_learners[slot], due, for_each=self._for_each)

    def run_tasks(
        self, scheduler: TaskScheduler, runs: Sequence[TaskStart], issue: Callable[[Learn], StreamLearner]
    ) -> None:
        """Issue each task from the thread of its place, which waits until the device has finished it."""

        def execute(run: TaskStart) -> None:
            issue(run.task).finished_event.synchronize()

        self._threads().run(scheduler, runs, execute)

    def bind(self) -> None:
        super().bind()
        if self._pool is not None and len(self._pool) != len(self.context.learners):
            self._pool.close()
            self._forgotten.detach()
            self._pool = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _for_each(self, issue: Callable[[StreamLearner], None]) -> None:
        """Issue something for each learner on its thread, completely before this returns."""
        learners = self.context.learners

        def execute(run: TaskStart) -> None:
            with torch.no_grad(), self.device.issuing():
                issue(learners[run.task.learner])

        scheduler = TaskScheduler(len(learners), len(learners))
        runs = scheduler.start([[True] * len(learners)], synchronises=False)
        self._threads().run(scheduler, runs, execute)

    def _threads(self) -> ThreadPool:
        if self._pool is None:
            self._pool = ThreadPool([self.device.cores()] * len(self.context.learners), threads=1)
            self._forgotten = weakref.finalize(self, self._pool.stop)  # if `close` is never called
        return self._pool
