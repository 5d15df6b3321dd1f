import pytest
import torch

from bow.errors import SettingError
from bow.models import LeNet


def test_full_size_is_caffe_s_network() -> None:
    assert sum(parameter.numel() for parameter in LeNet().parameters()) == 431_080


@pytest.mark.parametrize("size", [4, 5, 8, 12, 27, 28, 29, 32])
def test_images_of_many_sizes_fit(size: int) -> None:
    assert LeNet(size=size)(torch.randn(2, 1, size, size)).shape == (2, 10)


def test_too_small_images_are_refused() -> None:
    with pytest.raises(SettingError, match="size must be at least 4 pixels, got 3"):
        LeNet(size=3)
