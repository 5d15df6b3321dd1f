"""Batches of a round: by learner or stacked, flattened into tensors, and identified by shape."""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from bow.data import Batch, Batches, Indexed, Stacked


def gathered(batches: Batches) -> Batches:
    """Return batches whose samples are gathered, if they have still to be."""
    if isinstance(batches, Stacked):
        return Stacked(batches.value.gathered()) if isinstance(batches.value, Indexed) else batches
    return [each.gathered() if isinstance(each, Indexed) else each for each in batches]


def present(batches: Batches, learners: int) -> list[bool]:
    return [True] * learners if isinstance(batches, Stacked) else [batch is not None for batch in batches]


def stack_batches(batches: Batches) -> Batch | None:
    """Stack the learners' batches to tensors `[learners, batch, ...]`; None if structures or shapes differ."""
    if isinstance(batches, Stacked):
        return stored(batches.value)
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
    """Return whether a batch needs no flattening; the fast path for almost all batches."""
    return type(batch) is tuple and all(type(leaf) is Tensor for leaf in batch)


def leaves_of(batch: Batch) -> list[Any]:
    return list(batch) if is_tuple_of_tensors(batch) else tree_leaves(batch)


def stored(batch: Batch) -> Batch:
    """Return a batch whose tensors are none that a bit conjugates or negates, which `torch.compile` (2.13) ignores."""
    if any(isinstance(leaf, Tensor) and (leaf.is_conj() or leaf.is_neg()) for leaf in leaves_of(batch)):
        return tree_map_only(Tensor, lambda t: t.resolve_conj().resolve_neg(), batch)
    return batch


def structure_of(batch: Batch) -> Any:  # None if it holds anything but tensors
    if is_tuple_of_tensors(batch):
        return len(batch)
    leaves, spec = tree_flatten(batch)
    return spec if leaves and all(isinstance(leaf, Tensor) for leaf in leaves) else None


@dataclass(frozen=True)
class FlatBatch:
    """A flattened batch, of one learner or stacked."""

    leaves: Sequence[Any]
    spec: TreeSpec
    signature: tuple[Hashable, ...] | None  # of one learner's batch; None if a leaf is not a dense tensor

    @classmethod
    def of(
        cls,
        batch: Batch,
        *,
        stacked: bool = False,  # the batch has a leading learner dimension
        strides: bool = False,  # the signature includes strides
        other: Callable[[object], Hashable] | None = None,
    ) -> "FlatBatch":
        """Flatten a batch; `other` maps leaves that are not tensors to hashable values."""
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
        return tree_unflatten(self.leaves, self.spec)

    def with_leaves(self, leaves: Sequence[Any]) -> "FlatBatch":
        return FlatBatch(leaves, self.spec, self.signature)

    def of_learner(self, learner: int) -> "FlatBatch":
        return self.with_leaves([leaf[learner] for leaf in self.leaves])


def _flattened(batch: Batch) -> tuple[Sequence[Any], TreeSpec, Hashable]:
    """Return a batch's leaves, their tree spec, and a hashable structure that is fast to compare."""
    if is_tuple_of_tensors(batch):
        return batch, _spec_of_tuple(len(batch)), len(batch)
    leaves, spec = tree_flatten(batch)
    return leaves, spec, batch.samples if isinstance(batch, Indexed) else str(spec)


@functools.cache
def _spec_of_tuple(length: int) -> TreeSpec:
    return tree_flatten((0,) * length)[1]
