"""What is profiled and scheduled: a step graph with everything that it is run on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bow.graph import StepGraph, capture
from bow.graph.learning_step import Step, StepOutputs
from bow.runtime import LocalRuntime
from bow.runtime.issue import operators_of
from bow.runtime.local import dependencies_of
from bow.schedule import Schedule


@dataclass(frozen=True)
class Subject:
    """One learner's step on a batch.

    Attributes:
        graph: its operators.
        parameters: tensors by name.
        buffers: likewise.
        batch: what the graph was captured with, or the like.
    """

    graph: StepGraph
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    batch: Any

    @classmethod
    def of(
        cls,
        model: nn.Module,
        batch: Any,
        loss: Callable[[Any, Any], Tensor] | None = None,
        *,
        step: Step | None = None,
    ) -> "Subject":
        """A model's step; the arguments are those of `bow.capture`."""
        graph = capture(model, batch, loss, step=step)
        plain: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wraps, as capture does
        parameters = {name: tensor.detach() for name, tensor in plain.named_parameters(remove_duplicate=False)}
        return cls(graph, parameters, dict(plain.named_buffers(remove_duplicate=False)), batch)

    @property
    def num_operators(self) -> int:
        """How many operators there are to schedule."""
        return len(operators_of(self.graph))

    @property
    def dependencies(self) -> list[frozenset[int]]:
        """By operator: those whose results it reads."""
        return dependencies_of(operators_of(self.graph))

    def runtime(self, schedule: Schedule, *, cores: Sequence[Sequence[int]] | None = None) -> LocalRuntime:
        """Executors for a schedule; by executor, the cores that it keeps to, or None: its own."""
        return LocalRuntime(self.graph, schedule, cores=cores)

    def run(self, runtime: LocalRuntime, *, seed: int = 0, record: bool = False) -> StepOutputs:
        """Run the step once."""
        return runtime.run(self.parameters, self.buffers, self.batch, seed=seed, record=record)


class Executors:
    """Executors that carry a schedule out, as a contestant.

    Args:
        subject: the step.
        schedule: of its operators.
        cores: by executor: those that it keeps to; None: its own.
    """

    def __init__(self, subject: Subject, schedule: Schedule, cores: Sequence[Sequence[int]] | None = None) -> None:
        self._subject = subject
        self._runtime = subject.runtime(schedule, cores=cores)

    def run(self) -> StepOutputs:
        """Run the step once."""
        return self._subject.run(self._runtime)

    def rest(self) -> None:
        """End the executors' threads; the next run starts them again."""
        self._runtime.close()
