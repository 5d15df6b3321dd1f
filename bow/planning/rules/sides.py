"""How an interval of an output's dimension maps to an interval of an operand's: the parts that rules are made of."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from bow.planning.problem.box import Box, Interval


class Side(ABC):
    """What of one dimension of an operand a tile needs.

    Attributes:
        dim: the output's dimension that it depends on; None: on none.
    """

    dim: int | None

    @abstractmethod
    def interval(self, box: Box, size: int) -> Interval | None:
        """Of a dimension of this size, for a tile that makes `box`; None: nothing."""


@dataclass(frozen=True)
class Whole(Side):
    """All of it, as of what is summed over."""

    dim: None = field(default=None, init=False)

    def interval(self, box: Box, size: int) -> Interval | None:  # noqa: D102
        return 0, size


@dataclass(frozen=True)
class Along(Side):
    """The same interval as of the output."""

    dim: int

    def interval(self, box: Box, size: int) -> Interval | None:  # noqa: D102
        return box[self.dim]


@dataclass(frozen=True)
class Strided(Side):
    """Every so many elements from a start on, as of a slice.

    Example:
        >>> Strided(0, start=2, step=3).interval(((1, 3),), size=10)
        (5, 9)
    """

    dim: int
    start: int
    step: int = 1

    def interval(self, box: Box, size: int) -> Interval | None:  # noqa: D102
        first, end = box[self.dim]
        return self.start + first * self.step, self.start + (end - 1) * self.step + 1


@dataclass(frozen=True)
class Fixed(Side):
    """One element, whatever the tile."""

    index: int
    dim: None = field(default=None, init=False)

    def interval(self, box: Box, size: int) -> Interval | None:  # noqa: D102
        return self.index, self.index + 1


@dataclass(frozen=True)
class Shifted(Side):
    """Where an operand lies in the output from an offset on, as of concatenation and padding: nothing outside of it.

    Example:
        >>> Shifted(0, 4).interval(((2, 6),), size=10), Shifted(0, 4).interval(((0, 4),), size=10)
        ((0, 2), None)
    """

    dim: int
    offset: int

    def interval(self, box: Box, size: int) -> Interval | None:  # noqa: D102
        start, end = max(0, box[self.dim][0] - self.offset), min(size, box[self.dim][1] - self.offset)
        return (start, end) if start < end else None


@dataclass(frozen=True)
class SlidingWindow(Side):
    """The windows of a convolution or of pooling, halo included, as far as they lie in the operand.

    Example:
        >>> SlidingWindow(0, kernel=3, padding=1).interval(((4, 8),), size=8)
        (3, 8)
    """

    dim: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def reach(self, box: Box) -> Interval:
        """From where to where the windows reach, beyond the operand's ends too."""
        first, end = box[self.dim]
        start = first * self.stride - self.padding
        return start, (end - 1) * self.stride - self.padding + self.dilation * (self.kernel - 1) + 1

    def interval(self, box: Box, size: int) -> Interval | None:  # noqa: D102
        start, end = self.reach(box)
        # Windows that lie in the padding alone get one element: an operand that is not there has no gradient.
        start = min(max(start, 0), size - 1)
        return start, max(start + 1, min(end, size))


@dataclass(frozen=True)
class Adaptive(Side):
    """The windows of pooling to a given size: output i is made of `floor(i n / m)` to `ceil((i + 1) n / m)`.

    Example:
        >>> Adaptive(0, output=3).interval(((1, 2),), size=7)
        (2, 5)
    """

    dim: int
    output: int

    def interval(self, box: Box, size: int) -> Interval | None:  # noqa: D102
        first, end = box[self.dim]
        return first * size // self.output, -(-end * size // self.output)


@dataclass(frozen=True)
class Grouped(Side):
    """The input channels of the groups that some output channels belong to, of a grouped convolution.

    Example:
        >>> Grouped(0, groups=2, output=8).interval(((3, 4),), size=6)
        (0, 3)
    """

    dim: int
    groups: int
    output: int

    def interval(self, box: Box, size: int) -> Interval | None:  # noqa: D102
        first, end = box[self.dim]
        outputs, inputs = self.output // self.groups, size // self.groups
        return first // outputs * inputs, -(-end // outputs) * inputs
