"""A learning task whose operators run on several streams of its learner, by a schedule."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bow.devices import Stream, StreamDevice
from bow.engines.captured import changed_buffers
from bow.engines.task import Batch, Learned
from bow.errors import GraphError
from bow.graph import StepGraph
from bow.replicas import Learner, ParameterLayout
from bow.runtime import StreamRuntime
from bow.schedule import Schedule


class SpreadTask:
    """One learner's learning task on batches of one shape: a step graph on streams of the learner's own.

    It begins and ends on the first of them. The gradient goes to the learner's row of `G`, buffers are written where
    they are, and random numbers are those of the device's generator, in the order of issue.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.
    """

    def __init__(
        self,
        device: StreamDevice,
        graph: StepGraph,
        schedule: Schedule,
        streams: Sequence[Stream],
        learner: Learner,
        layout: ParameterLayout,
    ) -> None:
        self._runtime = StreamRuntime(graph, schedule, device, streams)
        self._module = learner.module
        self._parameters: dict[str, Tensor] = dict(learner.module.named_parameters())
        slots = [(name, slot) for slot in layout.slots for name in slot.names if name in graph.gradients]
        self._trained = [name for name, _ in slots]  # of a tied parameter, one name
        self._gradients = [slot.of(learner.gradient) for _, slot in slots]
        self._changed = changed_buffers(graph)

    def run(self, batch: Batch) -> Learned:
        """Issue it, up to the gradient; the first stream is the current one."""
        buffers = dict(self._module.named_buffers())
        try:
            made = self._runtime.run(self._parameters, buffers, batch)
        except GraphError as error:
            # Others know what to say of memory; and what must never be is no matter of the operator.
            if isinstance(error.__cause__, (torch.OutOfMemoryError, AssertionError)):
                raise error.__cause__ from None
            raise
        torch._foreach_copy_(self._gradients, [made.gradients[name] for name in self._trained])
        for name in self._changed:
            buffers[name].copy_(made.buffers[name])
        return Learned(made.loss, made.metrics)

    def close(self) -> None:
        """Let go of the memory that it left, before a capture or behind one."""
        self._runtime.close()
