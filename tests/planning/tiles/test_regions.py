"""Boxes of real tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from bow.planning.tiles.regions import Sums, put_together, region

WHOLE = torch.arange(24.0).reshape(4, 6)


def test_a_region_is_a_view() -> None:
    part = region(WHOLE[1:, 2:], ((2, 4), (3, 5)), ((1, 4), (2, 6)))
    assert torch.equal(part, WHOLE[2:4, 3:5])
    assert part.untyped_storage().data_ptr() == WHOLE.untyped_storage().data_ptr()


def test_one_part_that_fills_a_box_is_not_copied() -> None:
    assert put_together(((0, 4), (0, 6)), [(((0, 4), (0, 6)), WHOLE)]) is WHOLE


def test_parts_make_a_whole() -> None:
    parts = [(((1, 2), (0, 6)), WHOLE[1:2]), (((2, 4), (0, 6)), WHOLE[2:])]
    assert torch.equal(put_together(((1, 4), (0, 6)), parts), WHOLE[1:])


def zeros(key: object, shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape)


def test_what_is_added_is_not_changed() -> None:
    sums, one, other = Sums(zeros), torch.ones(4), torch.ones(4)
    origin = ((0, 4),)
    sums.add("key", origin, origin, one)
    sums.add("key", origin, origin, other)
    sums.add("key", origin, ((1, 3),), torch.ones(2))
    assert torch.equal(sums.take("key", origin), torch.tensor([2.0, 3, 3, 2]))
    assert torch.equal(one, torch.ones(4))
    assert torch.equal(other, torch.ones(4))


def test_a_part_is_added_to_zeros() -> None:
    sums = Sums(zeros)
    sums.add("key", ((2, 6),), ((3, 5),), torch.ones(2))
    assert torch.equal(sums.take("key", ((2, 6),)), torch.tensor([0.0, 1, 1, 0]))


def test_a_sum_of_nothing_is_zeros_and_a_sum_is_taken_once() -> None:
    sums = Sums(zeros)
    sums.add("key", ((0, 2),), ((0, 2),), torch.ones(2))
    sums.take("key", ((0, 2),))
    assert torch.equal(sums.take("key", ((0, 2),)), torch.zeros(2))


def test_a_stretched_tensor_can_be_added_to() -> None:
    sums = Sums(zeros)
    stretched = torch.ones(1).expand(3)  # as the gradient of a sum is
    sums.add("key", ((0, 3),), ((0, 3),), stretched)
    sums.add("key", ((0, 3),), ((0, 1),), torch.ones(1))
    assert torch.equal(sums.take("key", ((0, 3),)), torch.tensor([2.0, 1, 1]))
