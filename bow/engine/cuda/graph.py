"""Every learner's learning task as a CUDA graph on a stream of its own."""

from bow.engine.cuda.ahead import LearnersAhead
from bow.engine.cuda.feed import Fed, Given


class CudaGraphs(LearnersAhead):
    """Replays a CUDA graph for each learner, all from one thread.

    A learning task of a small model is a chain of tiny kernels: launched as one graph it costs the host a few
    microseconds, and the chains of several learners fill the device together. Each graph has a memory pool, inputs and
    random numbers of its own, so that graphs can run at the same time.

    What cannot be captured, and batches of shapes that are rare, run operator by operator on the learners' streams.

    References:
        Budea, TensorBow, 2019, chapter 4 (stream groups, replicated variables, allocators by stream).
    """

    name = "graph"

    def capture(self, given: Given) -> None:
        """Capture the learning task of every learner."""
        self.fork()
        for learner in self.learners:
            learner.capture(given, self.issued)

    def issue_learning(self, slot: int, fed: Fed, due: bool) -> None:
        """Issue every learner's part of the round."""
        self.issue_side_by_side(fed, self.results.rows_of_learners(slot), due, self.learn_one)
