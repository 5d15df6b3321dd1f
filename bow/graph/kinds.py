"""Properties of an operator kind (view, random, copy), and device-independent costs of an operator."""

import functools
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.utils.flop_counter import flop_registry

from bow.errors import GraphError
from bow.graph.operator import Operator, Ref, TensorSpec, map_refs

Kernel: TypeAlias = Any
# A `torch._ops.OpOverload`.

# Views whose schema does not declare them: torch promises not to write to their results.
_UNDECLARED_VIEWS = {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"}

# Operators that move or create numbers without arithmetic.
_MOVING = {
    "arange", "cat", "clone", "constant_pad_nd", "copy", "embedding", "empty", "empty_like", "fill", "full",
    "full_like", "gather", "index", "index_select", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_zeros", "ones", "ones_like", "repeat", "roll", "scalar_tensor", "select_backward", "slice_backward",
    "stack", "tril", "triu", "unfold_backward", "zeros", "zeros_like", "_to_copy", "lift_fresh_copy",
}  # fmt: skip


@functools.cache
def kernel_of(kind: str) -> Kernel:
    try:
        namespace, name, overload = kind.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (ValueError, AttributeError):
        raise GraphError(
            f"torch {torch.__version__} has no operator {kind!r}; import the library that defines it, "
            "or capture the model again with this version"
        ) from None


def is_update(kind: str) -> bool:
    """Whether a kind is an optimizer update, for which torch has no operator."""
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
    return not is_update(kind) and torch.Tag.nondeterministic_seeded in kernel_of(kind).tags


@functools.cache
def writes(kind: str) -> bool:
    return not is_update(kind) and bool(kernel_of(kind)._schema.is_mutable)


def has_recurrent_layer(operator: Operator) -> bool:
    """Whether the operator is a whole oneDNN recurrent layer, forward or backward."""
    return operator.kind.startswith("aten.mkldnn_rnn_layer")


def flops(operator: Operator, values: Mapping[int, TensorSpec]) -> int:
    """Floating-point operations of one call; a multiply-add counts as two."""
    # Matrix products, convolutions and attention follow `torch.utils.flop_counter`. Everything else counts one per
    # element of its largest argument or result, and copies count nothing.
    if operator.is_view or is_update(operator.kind):
        return 0
    if has_recurrent_layer(operator):
        products = (
            2
            * math.prod(values[operator.reads[0]].shape[:-1])
            * sum(values[weight].numel for weight in operator.reads[1:3])
        )
        return products if operator.phase == "forward" else 2 * products
    formula = flop_registry.get(kernel_of(operator.kind).overloadpacket)
    if formula is not None and (counted := _by_formula(formula, operator, values)):
        return counted
    if operator.kind.split(".")[1] in _MOVING:
        return 0
    return max((values[value].numel for value in _touched(operator)), default=0)


def bytes_moved(operator: Operator, values: Mapping[int, TensorSpec]) -> int:
    """Bytes of the distinct tensors that an operator reads and makes; 0 for a view."""
    if operator.is_view:
        return 0
    return sum(values[value].num_bytes for value in _touched(operator))


def _by_formula(formula: Any, operator: Operator, values: Mapping[int, TensorSpec]) -> int:
    def meta(ref: Ref) -> Any:
        return values[ref.value].empty("meta")

    arguments = map_refs(meta, operator.arguments)
    keywords = {name: map_refs(meta, value) for name, value in operator.keywords.items()}
    made = tuple(None if value is None else values[value].empty("meta") for value in operator.results)
    return int(formula(*arguments, **keywords, out_val=made[0] if len(made) == 1 else made))


def _touched(operator: Operator) -> set[int]:
    return {*operator.reads, *(value for value in operator.results if value is not None)}
