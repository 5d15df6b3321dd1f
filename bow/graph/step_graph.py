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

    Operators write to nothing that existed before: the only order among them is that a value must be there before
    it is read. Parameters, buffers and batch come from outside, so one graph serves any number of learners.

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
    """In the order of capture, which is one legal order; the updates come last."""
    values: Mapping[int, TensorSpec]
    """Every value that is an input or is made."""
    parameters: Mapping[str, int]
    """Value of each parameter, by its name in `named_parameters()`."""
    buffers: Mapping[str, int]
    """Value of each buffer before the step, by its name in `named_buffers()`."""
    batch: Mapping[str, int]
    """Value of each tensor of the batch, by its path in it."""
    constants: Mapping[int, Tensor]
    """Tensors that belong to the step itself."""
    loss: int
    gradients: Mapping[str, int]
    """Value of the gradient of each trained parameter."""
    new_buffers: Mapping[str, int]
    """Value of each buffer after the step; its value before where the step leaves it alone."""
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
        """Run it operator by operator; loss, gradients and buffers equal autograd's bit for bit.

        Args:
            parameters: tensors by the names of `model.named_parameters()`.
            buffers: tensors by the names of `model.named_buffers()`; they are not written to.
            batch: like the one it was captured with, shapes and dtypes included.
            seed: of the random numbers. Each operator draws from a stream of its own, derived from the seed and its
                index, so they do not depend on the order in which operators run; seeds of different learners and
                rounds come from `bow.seeds.derive_seed`. None draws from torch's generator as eager PyTorch does.
            optimizer: carries out the update operators, in place; it must hold these `parameters`. None skips them.

        Raises:
            GraphError: a tensor is missing or does not fit; an operator fails.
        """
        return execution.run(self, parameters, buffers, batch, seed, optimizer)

    @functools.cached_property
    def results(self) -> frozenset[int]:
        """The values that a step is run for."""
        named = (self.gradients, self.new_buffers, self.metrics)
        return frozenset({self.loss, *(value for names in named for value in names.values())})

    @functools.cached_property
    def last_uses(self) -> tuple[tuple[int, ...], ...]:
        """By operator: the values that nobody reads after it, so that their memory can go."""
        return tuple(execution.last_uses(self.operators, self.results))

    @property
    def flops(self) -> int:
        """Floating-point operations of a step, updates left out."""
        return sum(operator.flops for operator in self.operators)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the operators of a step read and write, each on its own."""
        return sum(operator.bytes_moved for operator in self.operators)

    def count(self) -> Counter[str]:
        """How many operators there are of each kind."""
        return Counter(operator.kind for operator in self.operators)

    def to_json(self) -> str:
        """The graph as JSON, with a version."""
        from bow.graph import json_format  # which trainings do without, as without the table

        return json_format.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> "StepGraph":
        """The graph that `to_json` wrote.

        Raises:
            GraphError: the text is damaged, or of another version.
        """
        from bow.graph import json_format

        return cls(**json_format.loads(text))

    def save(self, path: str | Path) -> None:
        """Write the graph to a file, as JSON."""
        save_text("the graph", path, self.to_json(), GraphError)

    @classmethod
    def load(cls, path: str | Path) -> "StepGraph":
        """Read a graph that `save` wrote.

        Raises:
            GraphError: the file cannot be read, is damaged, or of another version.
        """
        return cls.from_json(read_text("the graph", path, GraphError))

    def __repr__(self) -> str:
        from bow.graph import table

        return f"StepGraph({table.summary(self)})"

    def __str__(self) -> str:
        from bow.graph import table

        return table.table(self)
