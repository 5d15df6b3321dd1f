"""What memory an operator reads and writes, as its schema says."""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

_aten: Any = torch.ops.aten

UNDECLARED = {_aten.native_batch_norm.default: ("running_mean", "running_var")}
"""Arguments that operators write to although their schemas do not say so."""


def accessed(
    function: OpOverload, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that an operator reads and writes, as its schema says; a view touches nothing."""
    schema = function._schema
    written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    written.update(UNDECLARED.get(function, ()))
    if not written and any(result.alias_info is not None for result in schema.returns):
        return [], []
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    for index, argument in enumerate(schema.arguments):
        given = arguments[index] if index < len(arguments) else keywords.get(argument.name)
        # An argument that is written to may be read as well; a write orders it with everything a read would.
        (writes if argument.name in written else reads).extend(tensors_in(given))
    return reads, writes


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of a nested value."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
