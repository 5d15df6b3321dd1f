"""Small models."""

import pytest
import torch

from bow.errors import SettingError
from bow.models import MLP, LeNet


def test_full_size_is_caffe_s_network() -> None:
    assert sum(parameter.numel() for parameter in LeNet().parameters()) == 431_080


@pytest.mark.parametrize("size", [4, 5, 8, 12, 27, 28, 29, 32])
def test_images_of_many_sizes_fit(size: int) -> None:
    assert LeNet(size=size)(torch.randn(2, 1, size, size)).shape == (2, 10)


def test_too_small_images_are_refused() -> None:
    with pytest.raises(SettingError, match="size must be at least 4 pixels, got 3"):
        LeNet(size=3)


def test_relu_stands_between_the_layers() -> None:
    model = MLP(6, 3, hidden=(5, 4))
    inputs = torch.randn(7, 2, 3)
    first, second = model.hidden
    features = second(first(inputs.view(7, 6)).clamp(min=0)).clamp(min=0)
    assert torch.equal(model(inputs), model.output(features))


def test_without_hidden_layers_it_is_linear() -> None:
    model = MLP(6, 3, hidden=())
    inputs = torch.randn(7, 6)
    assert torch.equal(model(inputs), model.output(inputs))
