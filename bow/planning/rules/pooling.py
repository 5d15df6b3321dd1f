"""Pooling."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.convolution import image_names, windows
from bow.planning.rules.mapped import MappedRule, Shapes
from bow.planning.rules.sides import Adaptive, Along, Side


class PoolingRule(MappedRule):
    """Maximum or average over windows: split by sample (S), channel and position with halos (A).

    Operand: images `[sample, channel, *positions]`. Attributes: `kernel`, `stride`, `padding` and `dilation` by
    position; for averages `count_padding` and `divisor` (None: as many as there are).
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        given = (attributes[name] for name in ("kernel", "stride", "padding", "dilation"))
        return [[Along(0), Along(1), *windows(*given)]]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        return image_names(rank)


class AdaptivePoolingRule(MappedRule):
    """Maximum or average over windows that are as large as the output's size wants them."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        positions = (Adaptive(dim, shapes.output[dim]) for dim in range(2, len(shapes.output)))
        return [[Along(0), Along(1), *positions]]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        return image_names(rank)
