"""What looks at a tensor in another way: transposition, stretching, slices."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shapes, broadcast
from bow.planning.rules.sides import Along, Fixed, Side, Strided


class PermuteRule(MappedRule):
    """Dimensions in another order: dimension d of the output is dimension `dims[d]` of the operand."""

    is_view = True

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        dims = list(attributes["dims"])
        return [[Along(dims.index(dim)) for dim in range(len(dims))]]


class ExpandRule(MappedRule):
    """A tensor stretched to a larger shape."""

    is_view = True

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        return [broadcast(shapes.operands[0], shapes.output)]


class SliceRule(MappedRule):
    """Every `step`-th element from `start` on, along `dim`."""

    is_view = True

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        cut = Strided(attributes["dim"], attributes["start"], attributes["step"])
        return [[cut if dim == cut.dim else Along(dim) for dim in range(len(shapes.output))]]


class SelectRule(MappedRule):
    """The element `index` along `dim`, which the output does not have."""

    is_view = True

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        sides: list[Side] = [Along(dim) for dim in range(len(shapes.output))]
        sides.insert(attributes["dim"], Fixed(attributes["index"]))
        return [sides]
