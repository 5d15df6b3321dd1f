"""How much memory a training needs, before it is started."""

import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

ROWS_PER_LEARNER = 3
"""Weights, gradient and correction, in model sizes."""
ROWS_PER_DEVICE = 4
"""z, its next value, its previous value, and the sum of corrections, in model sizes."""


@dataclass(frozen=True)
class MemoryNeed:
    """The memory of one device, in bytes: `((3 + s) k + 4) P`, and activations.

    Attributes:
        model_bytes: P, the trainable parameters.
        learners: k.
        state_tensors: s, tensors that the optimizer keeps for each parameter.
        activation_bytes: what the backward pass of one learner's batch needs; None where that is unknown.
        learners_at_once: learners whose activations exist at the same time.
    """

    model_bytes: int
    learners: int
    state_tensors: int
    activation_bytes: int | None
    learners_at_once: int

    @property
    def learner_bytes(self) -> int:
        """What each further learner adds, activations left out."""
        return (ROWS_PER_LEARNER + self.state_tensors) * self.model_bytes

    @property
    def device_bytes(self) -> int:
        """What the device holds whatever the number of learners."""
        return ROWS_PER_DEVICE * self.model_bytes

    @property
    def total_bytes(self) -> int:
        """Everything, as far as it is known."""
        activations = self.learners_at_once * (self.activation_bytes or 0)
        return self.learners * self.learner_bytes + self.device_bytes + activations


def estimate_memory(
    build_model: Callable[[], nn.Module],
    batch: Any,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    *,
    learners: int,
    learners_at_once: int,
) -> MemoryNeed:
    """Estimate the memory of a training without running it.

    Args:
        build_model: makes the model.
        batch: the inputs of one learner's batch, a pytree of tensors.
        optimizer: makes the optimizer.
        learners: how many there would be.
        learners_at_once: how many of them the engine runs at the same time.
    """
    model = build_model()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return MemoryNeed(
        model_bytes=sum(parameter.nbytes for parameter in trainable),
        learners=learners,
        state_tensors=num_state_tensors(optimizer),
        activation_bytes=activation_bytes(model, batch),
        learners_at_once=learners_at_once,
    )


def num_state_tensors(optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> int:
    """How many tensors of a parameter's size an optimizer keeps for it, seen by trying.

    Example:
        >>> num_state_tensors(torch.optim.AdamW)
        2
    """
    parameter = nn.Parameter(torch.ones(3))
    tried = optimizer([parameter])
    parameter.grad = torch.ones(3)
    tried.step()
    return sum(isinstance(value, Tensor) and value.shape == (3,) for value in tried.state[parameter].values())


def activation_bytes(model: nn.Module, batch: Any) -> int | None:
    """What the forward pass of a batch keeps for the backward pass.

    It runs on the meta device, where tensors have shapes and no memory; None where the model cannot.
    """
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    meta = copy.deepcopy(model).to("meta")
    own = {tensor.untyped_storage()._cdata for tensor in itertools.chain(meta.parameters(), meta.buffers())}
    inputs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), batch)
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = meta(inputs)
    except Exception:  # an operator without shapes on the meta device, or a model that reads values
        return None
    results = {tensor.untyped_storage()._cdata: tensor for tensor in tree_leaves(outputs) if isinstance(tensor, Tensor)}
    sizes: dict[int, int] = {key: tensor.untyped_storage().nbytes() for key, tensor in (kept | results).items()}
    return sum(size for key, size in sizes.items() if key not in own)
