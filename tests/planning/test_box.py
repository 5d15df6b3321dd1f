"""Boxes, against sets of elements."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bow.planning.problem.box import (
    Box,
    bounds,
    common_refinement,
    contains,
    cut,
    intersection,
    relative_to,
    tiles,
    volume,
    whole,
)

sides = st.tuples(st.integers(0, 6), st.integers(1, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))
boxes = st.tuples(sides, sides)


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(*side) for side in box)))


@given(boxes, boxes)
def test_an_intersection_has_the_elements_of_both(one: Box, other: Box) -> None:
    common = intersection(one, other)
    assert (elements(common) if common is not None else set()) == elements(one) & elements(other)
    assert contains(one, other) == (elements(other) <= elements(one))


@given(st.lists(boxes, min_size=1, max_size=4))
def test_cells_part_what_lies_in_boxes(given_boxes: list[Box]) -> None:
    found = common_refinement(given_boxes)
    parts = [elements(cell) for cell in found]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert set().union(*parts) == set().union(*map(elements, given_boxes))
    for box, part in itertools.product(given_boxes, parts):
        assert part <= elements(box) or not part & elements(box)


def test_boxes_that_are_alike_are_one_cell() -> None:
    assert common_refinement([((0, 4), (0, 2))] * 3) == [((0, 4), (0, 2))]
    assert common_refinement([]) == []


@given(st.integers(1, 40), st.data())
def test_parts_are_as_equal_as_can_be(size: int, data: st.DataObject) -> None:
    degree = data.draw(st.integers(1, size))
    parts = cut(size, degree)
    assert [index for part in parts for index in range(*part)] == list(range(size))
    lengths = [end - start for start, end in parts]
    assert max(lengths) - min(lengths) <= 1
    assert len(parts) == degree


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_tiles_make_a_tensor_once(shape: list[int], data: st.DataObject) -> None:
    degrees = [data.draw(st.integers(1, size)) for size in shape]
    found = list(tiles(shape, degrees))
    assert sum(volume(box) for box in found) == volume(whole(shape))
    assert set().union(*map(elements, found)) == elements(whole(shape))
    assert bounds(found) == whole(shape)


@given(boxes, boxes)
def test_a_box_within_another_counts_from_its_corner(one: Box, other: Box) -> None:
    common = intersection(one, other)
    if common is not None:
        origin = tuple(start for start, _ in other)
        moved = {tuple(a - b for a, b in zip(element, origin, strict=True)) for element in elements(common)}
        assert elements(relative_to(common, other)) == moved
