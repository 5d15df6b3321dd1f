"""Every learner's learning task as a CUDA graph on its own stream."""

from collections.abc import Callable, Sequence

import torch

from bow.engines.batches import FlatBatch
from bow.engines.captured import with_autocast
from bow.engines.cuda.learner import SpreadTask, StreamLearner
from bow.engines.cuda.runner import AheadDeviceRunner, first_through, issue_in_parallel
from bow.engines.cuda.transfers import DeviceBatches
from bow.engines.first_come import run_tasks
from bow.engines.task_scheduler import Learn, TaskScheduler, TaskStart
from bow.errors import reason
from bow.schedule import Schedule


class CudaGraphs(AheadDeviceRunner):
    """Replay a CUDA graph for each learner, all from one thread."""

    # A learning task of a small model is a chain of tiny kernels: launched as one graph it costs the host a few
    # microseconds, and the chains of several learners fill the device together. Each graph has its own memory pool,
    # inputs and random numbers, so that graphs can run at the same time. With a schedule the operators of a learning
    # task are spread over several streams, as branches of its graph (Tang et al., 2018, section 4). The design follows
    # Budea, TensorBow, 2019, chapter 4.

    name = "graph"

    @property
    def draws_as_eager(self) -> bool:
        """False with a schedule, which issues operators in another order."""
        return self.context.settings.schedule is None

    def capture(self, batch: FlatBatch) -> None:
        context = self.context
        context.fork()
        schedule = context.settings.schedule
        refusal = None if schedule is None else self._capture_spread(batch, schedule)
        if schedule is None or refusal is not None:
            for learner in context.learners:
                learner.capture(batch, context.order.issued)  # raises again if the error is the user's
        if refusal is not None:
            context.log.warn(f"the schedule does not fit this step ({refusal}); operators run one after another")

    def issue(self, slot: int, batches: DeviceBatches, due: bool) -> None:
        issue_in_parallel(self.context, batches, self.context.results.rows_of_learners[slot], due)

    def run_tasks(
        self, scheduler: TaskScheduler, runs: Sequence[TaskStart], issue: Callable[[Learn], StreamLearner]
    ) -> None:
        run_tasks(scheduler, runs, lambda run: issue(run.task), first_through)

    def bind(self) -> None:
        super().bind()
        if self.context.settings.schedule is not None:
            for learner in self.context.learners:
                learner.open_streams(len(self.context.settings.schedule.threads))

    def _capture_spread(self, batch: FlatBatch, schedule: Schedule) -> str | None:
        """Capture every learning task on several streams of its learner; return why if that is impossible."""
        context, settings = self.context, self.context.settings
        try:
            step = with_autocast(settings.task_step, self.device.torch_device, settings.engine.precision)
            graph = context.learners[0].trace(batch, context.order.issued, step)
            for learner in context.learners:
                own = context.group.learners[learner.index]
                task = SpreadTask(self.device, graph, schedule, learner.streams, own, context.group.layout)
                learner.capture(batch, context.order.issued, task)
        except (AssertionError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            return reason(error)
        return None
