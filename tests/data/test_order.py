import torch

from bow.data.order import SampleOrder


def test_any_position_can_be_reached_directly() -> None:
    ahead, straight = SampleOrder(7, seed=1), SampleOrder(7, seed=1)
    whole = straight.indices(0, 70)
    for start in (63, 14, 0, 6, 69):
        count = min(9, 70 - start)
        assert torch.equal(ahead.indices(start, count), whole[start : start + count])


def test_indices_may_span_many_epochs() -> None:
    indices = SampleOrder(3, seed=0).indices(2, 11)
    assert len(indices) == 11
    for start in (1, 4, 7):
        assert sorted(indices[start : start + 3].tolist()) == [0, 1, 2]


def test_order_is_the_same_in_every_version() -> None:
    # Checkpoints hold a position in this order: changing it would break resuming.
    assert SampleOrder(8, seed=0).indices(0, 16).tolist() == [2, 4, 3, 5, 1, 0, 6, 7, 0, 6, 4, 3, 1, 5, 7, 2]
