"""Rules of layers: convolution, pooling, norms, matrix products, attention, embedding, LSTM cells, softmax, losses."""

from collections.abc import Collection, Sequence
from typing import Any

from bow.planning.problem.box import Box
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.rule import (
    Adaptive,
    Along,
    Grouped,
    MappedRule,
    Shape,
    Shapes,
    Side,
    SlidingWindow,
    Whole,
    broadcast,
)

SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


class ImageRule(MappedRule):
    """Base of operators with image-like output: sample, channel, spatial dimensions."""

    def names(self, rank: int) -> Sequence[str]:
        return ["sample", "channel", *SPATIAL.get(rank - 2, [f"dimension {number}" for number in range(2, rank)])]


class ConvolutionRule(ImageRule):
    """Convolution over one to three dimensions: split by sample (S), position with halos (A) and output channel (P)."""

    # Attributes: `stride`, `padding` and `dilation` by spatial dimension, `groups`.

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
    """Max or average pooling: split by sample (S), channel and position with halos (A)."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        given = (attributes[name] for name in ("kernel", "stride", "padding", "dilation"))
        return [[Along(0), Along(1), *windows(*given)]]


class AdaptivePoolingRule(ImageRule):
    """Adaptive max or average pooling, whose windows follow from the output size: split like `PoolingRule`."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        positions = (Adaptive(dim, shapes.output[dim]) for dim in range(2, len(shapes.output)))
        return [[Along(0), Along(1), *positions]]


class PadRule(MappedRule):
    """Constant padding with `value`: split by all dimensions."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        return [[SlidingWindow(dim, kernel=1, padding=before) for dim, before in enumerate(attributes["before"])]]


class FrozenBatchNormRule(ImageRule):
    """Batch norm with fixed statistics: split by sample (S), position (A) and channel (P)."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        samples: list[Side] = [Along(dim) for dim in range(len(shapes.output))]
        return [samples, *([Along(1)] for _ in shapes.operands[1:])]


class BatchNormRule(FrozenBatchNormRule):
    """Batch norm with batch statistics, summed over all tiles of a channel: exact under every split."""

    # Moments of tiles are combined as in Chan, Golub, LeVeque: Algorithms for computing the sample variance, 1983.

    def sums(self, operator: PlanOperator) -> tuple[str, ...]:
        return "mean", "variance"

    def sum_box(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> Box:
        return (box[1],)


class LayerNormRule(MappedRule):
    """Layer norm: split by all dimensions except the normalised ones, which are the last."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        free = len(shapes.output) - attributes["num_dims"]
        normalised: list[Side] = [Whole() for _ in shapes.output[free:]]
        return [[*(Along(dim) for dim in range(free)), *normalised], *(normalised for _ in shapes.operands[1:])]

    def unsplit(self, attributes: Any, shapes: Shapes) -> Collection[int]:
        return range(len(shapes.output) - attributes["num_dims"], len(shapes.output))


class LinearRule(MappedRule):
    """`y = x W^T + b`: split by sample (S), intermediate dimensions (A) and output channel (P)."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        last = len(shapes.output) - 1
        inputs: list[Side] = [*(Along(dim) for dim in range(last)), Whole()]
        return [inputs, [Along(last), Whole()], *([Along(last)] for _ in shapes.operands[2:])]

    def names(self, rank: int) -> Sequence[str]:
        return channel_last_names(rank)


class MatmulRule(MappedRule):
    """Matrix products, also batched: split by batch dimension, row and column."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        left, right = shapes.operands
        rank = len(shapes.output)
        return [
            [*stacked(left, shapes.output), Along(rank - 2), Whole()],
            [*stacked(right, shapes.output), Whole(), Along(rank - 1)],
        ]

    def names(self, rank: int) -> Sequence[str]:
        return [*(f"dimension {number}" for number in range(rank - 2)), "row", "column"]


def stacked(matrices: Shape, output: Shape) -> list[Side]:
    """Return the sides of the batch dimensions (all but the last two) of batched matrices."""
    return broadcast(matrices[:-2], output[:-2])


def channel_last_names(rank: int) -> Sequence[str]:
    return [*(f"dimension {number}" for number in range(rank - 1)), "channel"]


class AttentionRule(MappedRule):
    """`softmax(q k^T scale + mask) v`: split by sample (S), head, query and channel of the values (A)."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        queries, keys, values, *masks = shapes.operands
        rank, output = len(shapes.output), shapes.output
        return [
            [*stacked(queries, output), Along(rank - 2), Whole()],
            [*stacked(keys, output), Whole(), Whole()],
            [*stacked(values, output), Whole(), Along(rank - 1)],
            *([*broadcast(mask, output)[:-1], Whole()] for mask in masks),
        ]

    def names(self, rank: int) -> Sequence[str]:
        between = {2: ["head"]}.get(rank - 2, [f"dimension {number}" for number in range(1, rank - 2)])
        return ["sample", *between, "query", "channel"][-rank:]


class EmbeddingRule(MappedRule):
    """Embedding lookup: split by sample (S), position (A) and channel (P)."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        last = len(shapes.output) - 1
        return [[Along(dim) for dim in range(last)], [Whole(), Along(last)]]

    def names(self, rank: int) -> Sequence[str]:
        return channel_last_names(rank)


class LSTMCellRule(MappedRule):
    """One step of an LSTM: split by sample (S) and unit (P)."""

    # Weights `[4, unit, in]` and `[4, unit, unit]`, biases `[4, unit]`: the four gates of a unit are in one box.

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        read: list[Side] = [Along(0), Whole()]
        weight: list[Side] = [Whole(), Along(1), Whole()]
        biases: list[list[Side]] = [[Whole(), Along(1)] for _ in shapes.operands[5:]]
        return [read, read, [Along(0), Along(1)], weight, weight, *biases]

    def names(self, rank: int) -> Sequence[str]:
        return ["sample", "unit"]

    def output_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        return box, box


class SoftmaxRule(MappedRule):
    """Softmax or log-softmax: split by all dimensions except the normalised one, the attribute `dim`."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        dims = range(len(shapes.output))
        return [[Whole() if dim == attributes["dim"] else Along(dim) for dim in dims]]

    def unsplit(self, attributes: Any, shapes: Shapes) -> Collection[int]:
        return (attributes["dim"],)


class CrossEntropyRule(MappedRule):
    """Unreduced cross entropy or negative log likelihood: split by sample (S) and position (A)."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        positions = [Along(dim) for dim in range(1, len(shapes.output))]
        return [[Along(0), Whole(), *positions], [Along(0), *positions]]
