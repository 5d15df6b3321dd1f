"""A step graph with everything that it is run on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bow.graph import StepGraph, capture
from bow.graph.learning_step import Step, StepOutputs
from bow.runtime.issue import operators_of
from bow.runtime.local import LocalRuntime, dependencies_of
from bow.schedule import Schedule


@dataclass(frozen=True)
class BoundStep:
    """One learner's step on a batch, which can be run."""

    graph: StepGraph
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    batch: Any  # what the graph was captured with, or the like

    @classmethod
    def of(
        cls,
        model: nn.Module,
        batch: Any,
        loss: Callable[[Any, Any], Tensor] | None = None,
        *,
        step: Step | None = None,
    ) -> "BoundStep":
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
    def kinds(self) -> list[str]:
        """By operator: what it is, such as `aten.mm.default`."""
        return [operator.kind for operator in operators_of(self.graph)]

    @property
    def dependencies(self) -> list[frozenset[int]]:
        """By operator: those whose results it reads."""
        return dependencies_of(operators_of(self.graph))

    def run(self, runtime: LocalRuntime, *, seed: int = 0, record: bool = False) -> StepOutputs:
        """Run the step once."""
        return runtime.run(self.parameters, self.buffers, self.batch, seed=seed, record=record)


class ScheduledStep:
    """A step on executors that carry a schedule out, to be timed."""

    def __init__(self, step: BoundStep, schedule: Schedule, cores: Sequence[Sequence[int]] | None = None) -> None:
        self._step = step
        self._runtime = LocalRuntime(step.graph, schedule, cores=cores)

    def run(self) -> StepOutputs:
        """Run the step once."""
        return self._step.run(self._runtime)

    def rest(self) -> None:
        """End the executors' threads; the next run starts them again."""
        self._runtime.close()
