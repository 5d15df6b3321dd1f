import torch

from bow.data import digits


def test_digits_are_split_once_and_by_class() -> None:
    splits = digits()
    images, labels = splits.train
    held_out, held_out_labels = splits.validation
    assert images.shape == (1442, 1, 8, 8)
    assert held_out.shape == (355, 1, 8, 8)
    assert images.dtype == torch.float32
    share = held_out_labels.bincount() / (labels.bincount() + held_out_labels.bincount())
    assert splits.classes == len(share) == 10
    assert share.sub(0.2).abs().max() < 0.01


def test_limit_is_passed_on() -> None:
    assert len(digits(limit=7).train[0]) == 7
