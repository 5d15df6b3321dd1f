"""The vectorised round as one CUDA graph."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bow.engines.batched_layers import ALGORITHMS, Algorithms, batched_convolutions
from bow.engines.batches import FlatBatch
from bow.engines.cuda.context import StreamContext
from bow.engines.cuda.learner import WARM_UP, gathered, python_values_restored, state_of
from bow.engines.cuda.transfers import FINITE
from bow.engines.cuda.whole_round import RoundGraphs, StaticRound, unchanged
from bow.engines.fused import StackedBuffers, TogetherTask, vectorised, writing_results
from bow.errors import BowError, reason


class CudaFused(RoundGraphs):
    """Run the learning tasks of all learners as one that shares its kernels, and one kernel for the rest after it."""

    # The only engine whose number of kernels does not grow with the number of learners. Where the vectorised task
    # cannot be compiled it is captured uncompiled, and what cannot be vectorised runs on the learners' streams.

    name = "fused"

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        self._compiles = True
        self._algorithms: Algorithms = {}
        self._together: TogetherTask
        self._buffers: StackedBuffers

    @property
    def description(self) -> str:
        return super().description if self._compiles or self.context.captures.refused else f"{self.name} (not compiled)"

    @property
    def state(self) -> dict[str, Any]:
        return {"compiles": self._compiles, "ways": dict(self._algorithms)}

    def load(self, state: Mapping[str, Any]) -> None:
        self._compiles = bool(state["compiles"])
        self._algorithms = {what: way for what, way in state["ways"].items() if way in ALGORITHMS}

    def capture(self, batch: FlatBatch) -> None:
        # On the caller's stream, to which the memory of the unstacked buffers returns.
        self.device.caller().wait(self.context.learners[0].finished_event)  # `probe` restored the buffers there
        self._buffers.tensors()
        super().capture(batch)

    def warm_up(self, static: StaticRound) -> bool:
        """Compile and run the vectorised learning task; its changes to buffers are undone."""
        before = state_of(self.generator)
        try:
            with (
                python_values_restored(self.context.learners[0].module, strictly=True),
                self.device.on(self.stream),
                self.device.drawing_from(self.generator),
                unchanged(self._buffers.tensors()),
            ):
                try:
                    self._try(static)
                except (BowError, AssertionError, torch.OutOfMemoryError):
                    raise
                except Exception as error:
                    if not self._compiles:
                        raise
                    self._compiles, self._together = False, writing_results(self._vectorised, compiles=False)
                    self._try(static)  # raises if the error is the user's
                    self.context.log.warn(f"fused is not compiled ({reason(error)}); running {self.description}")
        finally:
            self.stream.record(self.finished_event)
            self.device.caller().wait(self.finished_event)  # other streams may be the next to use the learners
        return state_of(self.generator) != before

    def issue_round(self, static: StaticRound, due: bool) -> None:
        finite = self._learn(static)
        if self.context.stepping is not None:
            self.context.stepping.whole(finite, due)

    def bind(self) -> None:
        super().bind()
        self._vectorised = vectorised(self.context.group, self.context.settings)
        self._together = writing_results(self._vectorised, compiles=self._compiles)
        self._buffers = StackedBuffers(self.context.group)

    def _try(self, static: StaticRound) -> None:
        for _ in range(WARM_UP):
            self._learn(static)
        with self.device.without_waiting():  # as a capture would
            self._learn(static)

    def _learn(self, static: StaticRound) -> Tensor:
        matrix = self.context.group.matrix
        batch = gathered(static.batch.batch, self.context.kernels)
        with torch.autograd.set_multithreading_enabled(False), batched_convolutions(self._algorithms):
            loss, finite, metrics = self._together(matrix.weights, matrix.gradients, self._buffers.tensors(), batch)
        values = [value.to(static.rows.dtype) for value in (loss, finite, *metrics.values())]
        torch.stack(values, dim=1, out=static.rows)
        return values[FINITE]
