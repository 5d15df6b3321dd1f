"""What an operator costs whatever it runs on: floating-point operations and bytes moved."""

from collections.abc import Mapping
from typing import Any

from torch.utils.flop_counter import flop_registry

from bow.graph import kinds
from bow.graph.operator import Operator, Ref, TensorSpec, map_refs


def flops(operator: Operator, values: Mapping[int, TensorSpec]) -> int:
    """Floating-point operations of one call; a multiply-add counts as two.

    Matrix products, convolutions and attention follow `torch.utils.flop_counter`. Everything else counts one
    per element of its largest argument or result, and copies count nothing.
    """
    if operator.is_view or kinds.is_update(operator.kind):
        return 0
    formula = flop_registry.get(kinds.kernel_of(operator.kind).overloadpacket)
    if formula is not None and (counted := _by_formula(formula, operator, values)):
        return counted
    return 0 if kinds.moves_only(operator.kind) else _largest(operator, values)


def bytes_moved(operator: Operator, values: Mapping[int, TensorSpec]) -> int:
    """Bytes of the distinct tensors that an operator reads and makes; nothing for a view."""
    if operator.is_view:
        return 0
    return sum(values[value].num_bytes for value in _touched(operator))


def _by_formula(formula: Any, operator: Operator, values: Mapping[int, TensorSpec]) -> int:
    def meta(ref: Ref) -> Any:
        return values[ref.value].meta()

    arguments = map_refs(meta, operator.arguments)
    keywords = {name: map_refs(meta, value) for name, value in operator.keywords.items()}
    made = tuple(None if value is None else values[value].meta() for value in operator.results)
    return int(formula(*arguments, **keywords, out_val=made[0] if len(made) == 1 else made))


def _largest(operator: Operator, values: Mapping[int, TensorSpec]) -> int:
    return max((values[value].numel for value in _touched(operator)), default=0)


def _touched(operator: Operator) -> set[int]:
    return {*operator.reads, *(value for value in operator.results if value is not None)}
