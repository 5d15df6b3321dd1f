"""Splits the backward of a convolution into two operators that do not wait for each other."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from bow.graph.operator import Operator

_KIND = "aten.convolution_backward.default"
_HALVES = ((0,), (1, 2))
"""Input; weight and bias. oneDNN computes the bias in the same pass as the weight: alone, it costs the whole pass
again (2.5 ms instead of 0.3 for 16 x 20 x 12 x 12, float32, one thread)."""


def split_convolution_backward(operators: Sequence[Operator], wanted: Iterable[int]) -> list[Operator]:
    """Replace each `convolution_backward` by one call for the input gradient and one for weight and bias.

    The calls differ in `output_mask` alone; what nobody reads is not computed. Indices are not unique afterwards.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018.
    """
    read = {value for operator in operators for value in operator.reads} | set(wanted)
    parts = (_split(operator, read) if operator.kind == _KIND else (operator,) for operator in operators)
    return [part for group in parts for part in group]


def _split(operator: Operator, read: set[int]) -> Iterator[Operator]:
    *arguments, _ = operator.arguments
    for half in _HALVES:
        results = tuple(v if i in half and v in read else None for i, v in enumerate(operator.results))
        mask = tuple(value is not None for value in results)
        if any(mask):
            yield dataclasses.replace(operator, arguments=(*arguments, mask), results=results)
