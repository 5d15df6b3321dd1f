"""Every learner's learning task as a CUDA graph on a stream of its own."""

import torch

from bow.engines.captured import with_autocast
from bow.engines.cuda.ahead import LearnersAhead
from bow.engines.cuda.feed import Fed, Given
from bow.engines.cuda.learner import StreamLearner
from bow.engines.cuda.spread import SpreadTask
from bow.errors import reason
from bow.graph import StepGraph
from bow.schedule import Schedule


class CudaGraphs(LearnersAhead):
    """Replays a CUDA graph for each learner, all from one thread.

    A learning task of a small model is a chain of tiny kernels: launched as one graph it costs the host a few
    microseconds, and the chains of several learners fill the device together. Each graph has a memory pool, inputs and
    random numbers of its own, so that graphs can run at the same time.

    With a schedule the operators of a learning task are spread over several streams of its learner, which are branches
    of its graph. Where that is impossible, the learning task is captured as it is without one.

    What cannot be captured, and batches of shapes that are rare, run operator by operator on the learners' streams.

    References:
        Budea, TensorBow, 2019, chapter 4 (stream groups, replicated variables, allocators by stream).
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.
    """

    name = "graph"

    @property
    def draws_as_eager(self) -> bool:
        """Unless operators are issued in another order."""
        return self.settings.schedule is None

    def capture(self, given: Given) -> None:
        """Capture the learning task of every learner."""
        self.fork()
        schedule = self.settings.schedule
        refusal = None if schedule is None else self._capture_spread(given, schedule)
        if schedule is None or refusal is not None:
            for learner in self.learners:
                learner.capture(given, self.issued)  # an error that comes here as well is the user's
        if refusal is not None:
            self._tell(f"the strategy does not fit ({refusal}); operators run one after another")

    def issue_learning(self, slot: int, fed: Fed, due: bool) -> None:
        """Issue every learner's part of the round."""
        self.issue_side_by_side(fed, self.results.rows_of_learners(slot), due, self.learn_one)

    def _capture_spread(self, given: Given, schedule: Schedule) -> str | None:
        """Capture every learning task on the streams of its learner; else say why that is impossible."""
        try:
            graph = self._traced(given)
            for learner in self.learners:
                learner.capture(given, self.issued, self._spread(learner, graph, schedule))
        except (AssertionError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            return reason(error)
        return None

    def _traced(self, given: Given) -> StepGraph:
        settings = self.settings
        step = with_autocast(settings.step, self.device.torch_device, settings.precision)
        return self.learners[0].trace(given, self.issued, step)

    def _spread(self, learner: StreamLearner, graph: StepGraph, schedule: Schedule) -> SpreadTask:
        own, layout = self.group.learners[learner.index], self.group.layout
        return SpreadTask(self.device, graph, schedule, learner.streams, own, layout)

    def _bind(self) -> None:
        super()._bind()
        if self.settings.schedule is not None:
            for learner in self.learners:
                learner.open_streams(len(self.settings.schedule.threads))
