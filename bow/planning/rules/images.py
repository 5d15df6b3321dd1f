"""Rules of convolution, pooling, padding, batch norm and layer norm."""

from collections.abc import Collection, Sequence
from typing import Any

from bow.planning.problem.box import Box
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.mapped import Adaptive, Along, Grouped, MappedRule, Shapes, Side, SlidingWindow, Whole

SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


class ImageRule(MappedRule):
    """Of operators whose output has the dimensions of images."""

    def names(self, rank: int) -> Sequence[str]:
        return ["sample", "channel", *SPATIAL.get(rank - 2, [f"dimension {number}" for number in range(2, rank)])]


class ConvolutionRule(ImageRule):
    """Convolution over one to three dimensions: split by sample (S), position with halos (A) and output channel (P).

    Operands: images `[sample, channel, *positions]`, weight `[out, in / groups, *kernel]`, and a bias `[out]` or none.
    Attributes: `stride`, `padding` and `dilation` by position, and `groups`.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        kernel, groups = shapes.operands[1][2:], attributes["groups"]
        positions = windows(kernel, attributes["stride"], attributes["padding"], attributes["dilation"])
        channels = Whole() if groups == 1 else Grouped(1, groups, shapes.output[1])
        images: list[Side] = [Along(0), channels, *positions]
        weight: list[Side] = [Along(1), Whole(), *(Whole() for _ in kernel)]
        return [images, weight, *([Along(1)] for _ in shapes.operands[2:])]


def windows(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[SlidingWindow]:
    sizes = zip(kernel, stride, padding, dilation, strict=True)
    return [SlidingWindow(2 + position, *each) for position, each in enumerate(sizes)]


class PoolingRule(ImageRule):
    """Maximum or average over windows: split by sample (S), channel and position with halos (A).

    Operand: images `[sample, channel, *positions]`. Attributes: `kernel`, `stride`, `padding` and `dilation` by
    position; for averages `count_padding` and `divisor` (None: as many as there are).
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        given = (attributes[name] for name in ("kernel", "stride", "padding", "dilation"))
        return [[Along(0), Along(1), *windows(*given)]]


class AdaptivePoolingRule(ImageRule):
    """Maximum or average over windows that are as large as the output's size wants them."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        positions = (Adaptive(dim, shapes.output[dim]) for dim in range(2, len(shapes.output)))
        return [[Along(0), Along(1), *positions]]


class PadRule(MappedRule):
    """A tensor in a larger one, the rest of which is `value`: split by everything.

    Attribute: `before`, by dimension how many elements are put before it; less than 0: that many are cut off.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        return [[SlidingWindow(dim, kernel=1, padding=before) for dim, before in enumerate(attributes["before"])]]


class FrozenBatchNormRule(ImageRule):
    """Batch norm with given statistics: split by sample (S), position (A) and channel (P).

    Operands: samples `[sample, channel, ...]`, then what there is of one number a channel: mean and variance, weight
    and bias.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        samples: list[Side] = [Along(dim) for dim in range(len(shapes.output))]
        return [samples, *([Along(1)] for _ in shapes.operands[1:])]


class BatchNormRule(FrozenBatchNormRule):
    """Batch norm with the batch's own statistics, which all tiles of a channel sum: exact under every split.

    Operands: samples `[sample, channel, ...]`, weight and bias `[channel]` or none.

    References:
        Ioffe, Szegedy: Batch normalization, 2015, algorithm 1.
        Chan, Golub, LeVeque: Algorithms for computing the sample variance, 1983 (how the tiles' moments are summed).
    """

    def sums(self, operator: PlanOperator) -> tuple[str, ...]:
        return "mean", "variance"

    def sum_box(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> Box:
        return (box[1],)


class LayerNormRule(MappedRule):
    """Layer norm: split by all dimensions but the last ones, which are normalised.

    Operands: samples, and a weight and a bias of the normalised dimensions or none. Attribute: `num_dims`, how many are
    normalised.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        free = len(shapes.output) - attributes["num_dims"]
        normalised: list[Side] = [Whole() for _ in shapes.output[free:]]
        return [[*(Along(dim) for dim in range(free)), *normalised], *(normalised for _ in shapes.operands[1:])]

    def unsplit(self, attributes: Any, shapes: Shapes) -> Collection[int]:
        return range(len(shapes.output) - attributes["num_dims"], len(shapes.output))
