"""The learning tasks of all learners as one: `vmap` over the replica matrix."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from bow.engines.outcome import LearningConfig
from bow.engines.random import NoGenerators
from bow.engines.task import Batch, LearningTask, Metrics, PureTask, TaskResult
from bow.replicas import LearnerGroup, buffer_slots

# `(rows, buffers, batch) -> TaskResult`, each with a leading learner dimension.
Vectorised: TypeAlias = Callable[[Tensor, dict[str, Tensor], Batch], TaskResult]

# `(rows, gradients, buffers, batch) -> (loss, finite, metrics)` of all learners at once.
TogetherTask: TypeAlias = Callable[..., tuple[Tensor, Tensor, Metrics]]


def vectorised(group: LearnerGroup, settings: LearningConfig) -> Vectorised:
    task = LearningTask(group.learners[0].module, settings.task_step, group.device, settings.precision)
    function: Vectorised = torch.vmap(PureTask(task, group.layout), randomness="different")

    def run(rows: Tensor, buffers: dict[str, Tensor], batch: Batch) -> TaskResult:
        if torch.compiler.is_compiling():  # torch compiles no operator that takes a generator
            return function(rows, buffers, batch)
        with NoGenerators():  # type: ignore[no-untyped-call]
            return function(rows, buffers, batch)

    return run


def writing_results(together: Vectorised) -> TogetherTask:

    def run(
        rows: Tensor, gradients: Tensor, buffers: dict[str, Tensor], batch: Batch
    ) -> tuple[Tensor, Tensor, Metrics]:
        result = together(rows, buffers, batch)
        gradients.copy_(result.gradient)
        for name, buffer in result.buffers.items():
            buffers[name].copy_(buffer)
        return result.loss, result.finite, result.metrics

    return run


class StackedBuffers:
    """The learners' buffers, stacked by name; every learner's module has its row."""

    def __init__(self, group: LearnerGroup) -> None:
        self._group = group
        self._tensors: dict[str, Tensor] = {}
        self._valid = False

    def moved(self) -> None:
        self._valid = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the stacked buffers by name, after binding those of the learners to their rows."""
        if self._valid:
            return self._tensors
        slots = [dict(buffer_slots(learner.module)) for learner in self._group.learners]
        self._tensors = {}
        for name in slots[0]:
            owners = [s[name] for s in slots]
            values = [owner._buffers[key] for owner, key in owners]
            if values[0] is not None:
                self._tensors[name] = torch.stack([v for v in values if v is not None])
                for row, (owner, key) in zip(self._tensors[name], owners, strict=True):
                    owner._buffers[key] = row
        self._valid = True
        return self._tensors
