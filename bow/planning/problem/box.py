"""Boxes: rectangular parts of tensors, by whole numbers."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]  # from one index of a dimension to another, which it excludes

Box: TypeAlias = tuple[Interval, ...]  # an interval of each dimension of a tensor; of a scalar: ()


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def sizes(box: Box) -> tuple[int, ...]:
    return tuple(end - start for start, end in box)


def volume(box: Box) -> int:
    return math.prod(max(0, end - start) for start, end in box)


def intersection(one: Box, other: Box) -> Box | None:
    """What lies in both; None where nothing does."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < end for start, end in common) else None


def bounds(boxes: Sequence[Box]) -> Box:
    """The smallest box that holds them all."""
    return tuple((min(a for a, _ in sides), max(b for _, b in sides)) for sides in zip(*boxes, strict=True))


def within(box: Box, origin: Box) -> Box:
    """A box as indices into another one that holds it."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(box, origin, strict=True))


def cut(size: int, degree: int) -> tuple[Interval, ...]:
    """A dimension in parts that are as equal as can be; the first ones are larger by one where they cannot be equal."""
    least, larger = divmod(size, degree)
    ends = [*itertools.accumulate((least + (part < larger) for part in range(degree)), initial=0)]
    return tuple(itertools.pairwise(ends))


def tiles(shape: Sequence[int], degrees: Sequence[int]) -> Iterator[Box]:
    """A tensor in parts, the last dimension's parts side by side (row-major)."""
    return itertools.product(*(cut(size, degree) for size, degree in zip(shape, degrees, strict=True)))


def cells(boxes: Sequence[Box]) -> list[Box]:
    """The parts into which all borders of some boxes cut what lies in them: each lies in a box wholly or not at all."""
    if not boxes:
        return []
    borders = [sorted({end for side in sides for end in side}) for sides in zip(*boxes, strict=True)]
    grid = itertools.product(*(itertools.pairwise(ends) for ends in borders))
    return [cell for cell in grid if any(contains(box, cell) for box in boxes)]


def contains(box: Box, other: Box) -> bool:
    return all(start <= a and b <= end for (start, end), (a, b) in zip(box, other, strict=True))
