"""Boxes: rectangular regions of tensors, in integer indices."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]  # half-open index range [start, end)

Box: TypeAlias = tuple[Interval, ...]  # one interval for each dimension of a tensor; () for a scalar


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def sizes(box: Box) -> tuple[int, ...]:
    return tuple(end - start for start, end in box)


def volume(box: Box) -> int:
    return math.prod(max(0, end - start) for start, end in box)


def intersection(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < end for start, end in common) else None


def bounds(boxes: Sequence[Box]) -> Box:
    return tuple((min(a for a, _ in sides), max(b for _, b in sides)) for sides in zip(*boxes, strict=True))


def relative_to(box: Box, origin: Box) -> Box:
    """Return a box in indices relative to an enclosing box."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(box, origin, strict=True))


def cut(size: int, degree: int) -> tuple[Interval, ...]:
    """Split a dimension into parts that differ by at most one element, the larger ones first."""
    least, larger = divmod(size, degree)
    ends = [*itertools.accumulate((least + (part < larger) for part in range(degree)), initial=0)]
    return tuple(itertools.pairwise(ends))


def tiles(shape: Sequence[int], degrees: Sequence[int]) -> Iterator[Box]:
    """Yield the tiles of a tensor in row-major order."""
    return itertools.product(*(cut(size, degree) for size, degree in zip(shape, degrees, strict=True)))


def common_refinement(boxes: Sequence[Box]) -> list[Box]:
    """Cut the union of boxes along all their borders, so that each cell is entirely inside or outside of every box."""
    if not boxes:
        return []
    borders = [sorted({end for side in sides for end in side}) for sides in zip(*boxes, strict=True)]
    grid = itertools.product(*(itertools.pairwise(ends) for ends in borders))
    return [cell for cell in grid if any(contains(box, cell) for box in boxes)]


def contains(box: Box, other: Box) -> bool:
    return all(start <= a and b <= end for (start, end), (a, b) in zip(box, other, strict=True))
