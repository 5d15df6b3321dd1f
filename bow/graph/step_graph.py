"""The operators of one training step."""

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from bow.errors import GraphError
from bow.files import read_text, save_text
from bow.graph import execution
from bow.graph.learning_step import StepOutputs
from bow.graph.operator import Operator, TensorSpec


@dataclass(frozen=True, eq=False, repr=False)
class StepGraph:
    """One training step of one learner as a graph of operators, made by `bow.capture`.

    Operators never write to existing values: the only order among them is that a value is made before it is read.
    Parameters, buffers and batch are passed to `run`, so one graph serves any number of learners.

    Example:
        >>> import torch, bow
        >>> batch = torch.randn(4, 3), torch.randn(4, 1)
        >>> model = torch.nn.Linear(3, 1)
        >>> graph = bow.capture(model, batch, torch.nn.functional.mse_loss)
        >>> outputs = graph.run(dict(model.named_parameters()), {}, batch)
        >>> sorted(outputs.gradients)
        ['bias', 'weight']

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018.
    """

    operators: tuple[Operator, ...]
    """In capture order, which is one legal order; the updates come last."""
    values: Mapping[int, TensorSpec]
    """Spec of every input and every result."""
    parameters: Mapping[str, int]
    """Value of each parameter, by its name in `named_parameters()`."""
    buffers: Mapping[str, int]
    """Value of each buffer before the step, by its name in `named_buffers()`."""
    batch: Mapping[str, int]
    """Value of each tensor of the batch, by its path in it."""
    constants: Mapping[int, Tensor]
    """Tensors that the step itself holds."""
    loss: int
    gradients: Mapping[str, int]
    """Value of the gradient of each trained parameter."""
    new_buffers: Mapping[str, int]
    """Value of each buffer after the step; its value before the step if the step does not change it."""
    metrics: Mapping[str, int]
    device: str
    """The device it was captured for, such as `cpu` or `cuda:0`."""

    def run(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        batch: Any,
        *,
        seed: int | None = None,
        optimizer: Optimizer | None = None,
    ) -> StepOutputs:
        """Run the graph operator by operator; loss, gradients and buffers equal autograd's bit for bit.

        Args:
            parameters: tensors by the names of `model.named_parameters()`.
            buffers: tensors by the names of `model.named_buffers()`; they are not written to.
            batch: a batch with the shapes and dtypes of the captured one.
            seed: seed of the random numbers. Each operator draws from its own stream, derived from the seed and its
                index, so they do not depend on the execution order; seeds for learners and rounds come from
                `bow.seeds.derive_seed`. None draws from torch's generator as eager PyTorch does.
            optimizer: executes the update operators, in place; it must hold these `parameters`. None skips them.

        Raises:
            GraphError: a tensor is missing or does not fit; an operator fails.
        """
        return execution.run(self, parameters, buffers, batch, seed, optimizer)

    @functools.cached_property
    def results(self) -> frozenset[int]:
        """The values that a step returns."""
        named = (self.gradients, self.new_buffers, self.metrics)
        return frozenset({self.loss, *(value for names in named for value in names.values())})

    @functools.cached_property
    def last_uses(self) -> tuple[tuple[int, ...], ...]:
        """By operator: the values that no later operator reads, so that their memory can be freed."""
        return tuple(execution.last_uses(self.operators, self.results))

    @property
    def flops(self) -> int:
        """Floating-point operations of a step, without updates."""
        return sum(operator.flops for operator in self.operators)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the operators of a step read and write, summed over operators."""
        return sum(operator.bytes_moved for operator in self.operators)

    def count(self) -> Counter[str]:
        """Return the number of operators of each kind."""
        return Counter(operator.kind for operator in self.operators)

    def to_json(self) -> str:
        """Return the graph as versioned JSON."""
        from bow.graph import formats  # not needed by trainings

        return formats.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> "StepGraph":
        """Restore a graph from the output of `to_json`.

        Raises:
            GraphError: the text is damaged, or of another format version.
        """
        from bow.graph import formats

        return cls(**formats.loads(text))

    def save(self, path: str | Path) -> None:
        """Write the graph to a file, as JSON."""
        save_text("the graph", path, self.to_json(), GraphError)

    @classmethod
    def load(cls, path: str | Path) -> "StepGraph":
        """Read a graph written by `save`.

        Raises:
            GraphError: the file cannot be read, is damaged, or of another format version.
        """
        return cls.from_json(read_text("the graph", path, GraphError))

    def __repr__(self) -> str:
        from bow.graph import formats

        return f"StepGraph({formats.summary(self)})"

    def __str__(self) -> str:
        from bow.graph import formats

        return formats.table(self)
