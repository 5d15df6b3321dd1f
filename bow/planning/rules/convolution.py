"""Convolution."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shapes
from bow.planning.rules.sides import Along, Grouped, Side, Whole, SlidingWindow

SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


class ConvolutionRule(MappedRule):
    """Convolution over one to three dimensions: split by sample (S), position with halos (A) and output channel (P).

    Operands: images `[sample, channel, *positions]`, weight `[out, in / groups, *kernel]`, and a bias `[out]` or none.
    Attributes: `stride`, `padding` and `dilation` by position, and `groups`.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        kernel, groups = shapes.operands[1][2:], attributes["groups"]
        positions = windows(kernel, attributes["stride"], attributes["padding"], attributes["dilation"])
        channels = Whole() if groups == 1 else Grouped(1, groups, shapes.output[1])
        images: list[Side] = [Along(0), channels, *positions]
        weight: list[Side] = [Along(1), Whole(), *(Whole() for _ in kernel)]
        return [images, weight, *([Along(1)] for _ in shapes.operands[2:])]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        return image_names(rank)


def windows(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[SlidingWindow]:
    """The windows of all positions of an image."""
    sizes = zip(kernel, stride, padding, dilation, strict=True)
    return [SlidingWindow(2 + position, *each) for position, each in enumerate(sizes)]


def image_names(rank: int) -> Sequence[str]:
    """What the dimensions of images are called."""
    return ["sample", "channel", *SPATIAL.get(rank - 2, [f"dimension {number}" for number in range(2, rank)])]
