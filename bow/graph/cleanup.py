"""Removes operators that change nothing or whose results nothing reads, and splits the backward of convolutions."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bow.graph.operator import Operator, Ref, TensorSpec

_SAME = {"alias", "clone", "detach", "lift_fresh", "lift_fresh_copy"}
_OTHER_VALUES = {"as_strided", "_conj", "_neg_view"}
"""Views that may lie like their argument and yet have other values: a conjugate is a bit of the tensor."""
_CONVOLUTION_BACKWARD = "aten.convolution_backward.default"
_HALVES = ((0,), (1, 2))
"""Input; weight and bias. oneDNN computes the bias in the same pass as the weight: alone, it costs the whole pass
again (2.5 ms instead of 0.3 for 16 x 20 x 12 x 12, float32, one thread)."""


def skip_identities(
    operators: Sequence[Operator], values: Mapping[int, TensorSpec]
) -> tuple[list[Operator], dict[int, int]]:
    """Remove copies, detachments and views whose result is laid out like their argument.

    No operator writes to its arguments, so a copy can be its original. A copy that changes the memory order stays:
    which kernel a matrix product uses depends on it.
    """
    kept: list[Operator] = []
    instead: dict[int, int] = {}
    for operator in operators:
        current = operator.with_arguments(lambda ref: Ref(instead.get(ref.value, ref.value)))
        if _is_identity(current, values):
            (result,) = current.results
            assert result is not None
            instead[result] = current.reads[0]
        else:
            kept.append(current)
    return kept, instead


def drop_dead(operators: Sequence[Operator], wanted: Iterable[int]) -> list[Operator]:
    """Remove operators without effect on the wanted values.

    Random ones stay: they advance the generator that the others draw from. So do those without a result: they
    check something, such as whether a matrix could be inverted.
    """
    live, kept = set(wanted), []
    for operator in reversed(operators):
        if operator.is_random or _checks(operator) or not live.isdisjoint(operator.results):
            live.update(operator.reads)
            kept.append(operator)
    return kept[::-1]


def _checks(operator: Operator) -> bool:
    return all(value is None for value in operator.results)


def renumber(operators: Sequence[Operator]) -> list[Operator]:
    """Give operators the numbers 0, 1, 2, ... in their order."""
    new = {operator.index: position for position, operator in enumerate(operators)}
    return [
        dataclasses.replace(
            operator, index=position, forward=None if operator.forward is None else new.get(operator.forward)
        )
        for position, operator in enumerate(operators)
    ]


def _is_identity(operator: Operator, values: Mapping[int, TensorSpec]) -> bool:
    name = operator.kind.split(".")[1]
    if name not in _SAME and not (operator.is_view and name not in _OTHER_VALUES):
        return False
    if len(operator.results) != 1 or operator.results[0] is None or not operator.reads:
        return False
    return values[operator.reads[0]].lies_like(values[operator.results[0]])


def split_convolution_backward(operators: Sequence[Operator], wanted: Iterable[int]) -> list[Operator]:
    """Replace each `convolution_backward` by one call for the input gradient and one for weight and bias.

    The calls differ in `output_mask` alone; what nobody reads is not computed. Indices are not unique afterwards.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018.
    """
    read = {value for operator in operators for value in operator.reads} | set(wanted)
    parts = (
        _split(operator, read) if operator.kind == _CONVOLUTION_BACKWARD else (operator,) for operator in operators
    )
    return [part for group in parts for part in group]


def _split(operator: Operator, read: set[int]) -> Iterator[Operator]:
    *arguments, _ = operator.arguments
    for half in _HALVES:
        results = tuple(v if i in half and v in read else None for i, v in enumerate(operator.results))
        mask = tuple(value is not None for value in results)
        if any(mask):
            yield dataclasses.replace(operator, arguments=(*arguments, mask), results=results)
