"""What a kind of operator is: found by its name, a view, random, or a mere copy."""

import functools
from typing import Any, TypeAlias

import torch

from bow.errors import GraphError

Kernel: TypeAlias = Any
"""A `torch._ops.OpOverload`."""

# Views that their schema does not declare: torch promises not to write to their results.
_UNDECLARED_VIEWS = {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"}

# Operators that move or make numbers without computing any.
_MOVING = {
    "arange", "cat", "clone", "constant_pad_nd", "copy", "embedding", "empty", "empty_like", "fill", "full",
    "full_like", "gather", "index", "index_select", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_zeros", "ones", "ones_like", "repeat", "roll", "scalar_tensor", "select_backward", "slice_backward",
    "stack", "tril", "triu", "unfold_backward", "zeros", "zeros_like", "_to_copy", "lift_fresh_copy",
}  # fmt: skip


@functools.cache
def kernel_of(kind: str) -> Kernel:
    """The operator that a kind names."""
    try:
        namespace, name, overload = kind.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (ValueError, AttributeError):
        raise GraphError(
            f"torch {torch.__version__} has no operator {kind!r}; import the library that defines it, "
            "or capture the model again with this version"
        ) from None


def is_update(kind: str) -> bool:
    """Whether a kind is an optimizer's update, which torch has no operator for."""
    return kind.startswith("update.")


@functools.cache
def is_view(kind: str) -> bool:
    """Whether the result shares the argument's memory."""
    if is_update(kind):
        return False
    returned = [returns.alias_info for returns in kernel_of(kind)._schema.returns]
    declared = any(alias is not None and not alias.is_write for alias in returned)
    return declared or kind.split(".")[1] in _UNDECLARED_VIEWS


@functools.cache
def is_random(kind: str) -> bool:
    """Whether the operator draws from the random number generator of its device."""
    return not is_update(kind) and torch.Tag.nondeterministic_seeded in kernel_of(kind).tags


@functools.cache
def writes(kind: str) -> bool:
    """Whether the operator changes one of its arguments."""
    return not is_update(kind) and bool(kernel_of(kind)._schema.is_mutable)


def moves_only(kind: str) -> bool:
    """Whether the operator copies or fills without computing."""
    return kind.split(".")[1] in _MOVING
