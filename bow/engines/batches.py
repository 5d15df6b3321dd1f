"""Batches of a round: by learner or stacked, taken apart into tensors, and told apart by their shapes."""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from bow.data import Indexed

Batch: TypeAlias = Any
"""Any pytree of tensors with the sample dimension first."""


@dataclass(frozen=True)
class Stacked:
    """Batches of all learners as one pytree whose tensors are `[learners, batch, ...]`."""

    value: Any


Batches: TypeAlias = Stacked | Sequence[Batch | None]
"""One batch per learner; None where a learner sits out."""


def batch_of(batches: Batches, learner: int) -> Batch | None:
    """One learner's batch."""
    if isinstance(batches, Stacked):
        return tree_map(lambda t: t[learner], batches.value)
    return batches[learner]


def present(batches: Batches, learners: int) -> list[bool]:
    """Which learners have a batch."""
    return [True] * learners if isinstance(batches, Stacked) else [batch is not None for batch in batches]


def stack_batches(batches: Batches) -> Batch | None:
    """The learners' batches as one pytree of `[learners, batch, ...]` tensors; None where they do not fit."""
    if isinstance(batches, Stacked):
        return batches.value
    flat: list[tuple[list[Any], Any]] = []
    for batch in batches:
        if batch is None:
            return None
        flat.append(tree_flatten(batch))
    first_leaves, spec = flat[0]
    for leaves, other in flat:
        if other != spec or any(not isinstance(leaf, Tensor) for leaf in leaves):
            return None
        if any(a.shape != b.shape for a, b in zip(leaves, first_leaves, strict=True)):
            return None
    return tree_map(lambda *tensors: torch.stack(tensors), *batches)


def is_tuple_of_tensors(batch: Batch) -> bool:
    """Whether a batch need not be flattened: almost always so, and known in no time."""
    return type(batch) is tuple and all(type(leaf) is Tensor for leaf in batch)


def leaves_of(batch: Batch) -> list[Any]:
    """The tensors of a batch, in the order that the step graph has them."""
    return list(batch) if is_tuple_of_tensors(batch) else tree_leaves(batch)


def structure_of(batch: Batch) -> Any:
    """How a batch is made up of tensors; None where it holds something else."""
    if is_tuple_of_tensors(batch):
        return len(batch)
    leaves, spec = tree_flatten(batch)
    return spec if leaves and all(isinstance(leaf, Tensor) for leaf in leaves) else None


@dataclass(frozen=True)
class FlatBatch:
    """One learner's batch taken apart, or that of all with the learners first."""

    leaves: Sequence[Any]
    spec: TreeSpec
    signature: tuple[Hashable, ...] | None  # of one learner's batch; None where it holds more than dense tensors

    @classmethod
    def of(
        cls,
        batch: Batch,
        *,
        stacked: bool = False,  # it is that of all learners
        strides: bool = False,  # batches that lie in memory in another way are others
        other: Callable[[object], Hashable] | None = None,
    ) -> "FlatBatch":
        """Take a batch apart; where there is an `other`, it tells leaves apart that are no tensors."""
        leaves, spec, structure = _flattened(batch)
        kinds: list[Hashable] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor) and (leaf.layout is torch.strided or other is not None):
                shape = leaf.shape[stacked:]
                kinds.append((shape, leaf.stride(), leaf.dtype) if strides else (shape, leaf.dtype))
            elif other is not None:
                kinds.append(other(leaf))
            else:
                return cls(leaves, spec, None)
        return cls(leaves, spec, (structure, *kinds) if leaves or other else None)

    @property
    def batch(self) -> Batch:
        """The batch."""
        return tree_unflatten(self.leaves, self.spec)

    def with_leaves(self, leaves: Sequence[Any]) -> "FlatBatch":
        """The same kind of batch, of other leaves."""
        return FlatBatch(leaves, self.spec, self.signature)

    def of_learner(self, learner: int) -> "FlatBatch":
        """One learner's batch out of that of all."""
        return self.with_leaves([leaf[learner] for leaf in self.leaves])


def _flattened(batch: Batch) -> tuple[Sequence[Any], TreeSpec, Hashable]:
    """A batch's leaves, how they make it up, and that as something to compare quickly."""
    if is_tuple_of_tensors(batch):
        return batch, _spec_of_tuple(len(batch)), len(batch)
    leaves, spec = tree_flatten(batch)
    return leaves, spec, batch.samples if isinstance(batch, Indexed) else str(spec)


@functools.cache
def _spec_of_tuple(length: int) -> TreeSpec:
    return tree_flatten((0,) * length)[1]
