"""A model's step as a graph of operators, and what is needed to run it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bow.errors import DataError
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.tiles.builder import Maker


@dataclass(frozen=True)
class CapturedStep:
    """The operators of a training step, from the batch to the loss. It can be pickled.

    Attributes:
        graph: what is split and placed.
        inputs: the numbers of the batch's tensors, in the order in which they lie in it.
        dtypes: the types of all tensors, by number.
        counters: by buffer that counts: by how much it grows in a step.
        makers: by tensor that is the same in every step: what makes it out of the model's buffers.
    """

    graph: OperatorGraph
    inputs: tuple[int, ...]
    dtypes: Mapping[int, torch.dtype]
    counters: Mapping[str, int]
    makers: Mapping[int, Maker]

    def constants(self, model: nn.Module, device: torch.device) -> dict[int, Tensor]:
        """The tensors that are the same in every step."""
        buffers = dict(model.named_buffers())
        return {number: make(buffers).detach().to(device) for number, make in self.makers.items()}

    def equals(self, other: "CapturedStep", model: nn.Module) -> bool:
        """Whether another capture of a model's step computes the same, with the same numbers and constants."""
        cpu = torch.device("cpu")
        pairs = zip(self.constants(model, cpu).values(), other.constants(model, cpu).values(), strict=False)
        return self.graph == other.graph and all(mine.equal(theirs) for mine, theirs in pairs)

    def fits(self, batch: Any) -> bool:
        """Whether the tensors of a batch are of the shapes that were captured."""
        shapes = [tuple(leaf.shape) if isinstance(leaf, Tensor) else None for leaf in tree_leaves(batch)]
        return shapes == [self.graph.tensors[number].shape for number in self.inputs]

    def leaves(self, batch: Any, device: torch.device) -> dict[int, Tensor]:
        """The tensors of a batch by number."""
        tensors: Sequence[Any] = tree_leaves(batch)
        for place, (number, tensor) in enumerate(itertools.zip_longest(self.inputs, tensors)):
            wanted = None if number is None else (*self.graph.tensors[number].shape,)
            got = tuple(tensor.shape) if isinstance(tensor, Tensor) else None
            if wanted is None or got != wanted:
                raise DataError(
                    f"tensor {place} of the batch has the shape {got}, and the strategy is of {wanted}; "
                    "give batches of the size that was planned"
                )
        return {number: tensor.to(device) for number, tensor in zip(self.inputs, tensors, strict=True)}
