import pytest
import torch

from bow.data import DataSplits
from bow.data.splits import standardize
from bow.errors import SettingError


def _splits() -> DataSplits:
    part = (torch.arange(6.0), torch.arange(6))
    return DataSplits(part, part, 6, "numbers")


def test_limit_keeps_the_first_training_samples_and_all_validation() -> None:
    limited = _splits().limited(2)
    assert [len(tensor) for tensor in (*limited.train, *limited.validation)] == [2, 2, 6, 6]
    assert limited.train[1].tolist() == [0, 1]


def test_no_limit_keeps_everything() -> None:
    assert len(_splits().limited(None).train[0]) == 6


def test_limit_below_one_is_refused() -> None:
    with pytest.raises(SettingError, match=r"limit must be .*at least 1, got 0"):
        _splits().limited(0)


def test_standardize_scales_each_channel_by_training_statistics() -> None:
    images = torch.randint(0, 256, (50, 2, 4, 4), dtype=torch.uint8)
    train, validation = standardize(images, images[:5])
    assert train.dtype == torch.float32
    for channel in (0, 1):
        assert train[:, channel].mean().item() == pytest.approx(0, abs=1e-5)
        assert train[:, channel].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(validation, train[:5])


def test_standardize_leaves_its_input_alone() -> None:
    images = torch.randn(5, 1, 2, 2)
    before = images.clone()
    standardize(images, images)
    assert torch.equal(images, before)
