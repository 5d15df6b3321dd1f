import pytest
import torch
import torch.nn.functional as F

from bow.errors import SettingError
from bow.models import PathNet
from bow.models.pathnet import PathNetLayer


def test_a_layer_is_the_sum_of_its_modules() -> None:
    layer, images = PathNetLayer(2, 4, modules=3).double(), torch.randn(2, 2, 6, 6, dtype=torch.float64)
    outputs = [
        F.max_pool2d(F.conv2d(images, conv.weight, conv.bias, padding=1).clamp(min=0), 2) for conv in layer.convs
    ]
    torch.testing.assert_close(layer(images), torch.stack(outputs).sum(0), rtol=0, atol=1e-12)


def test_it_has_three_layers_of_six_modules() -> None:
    assert [len(layer.convs) for layer in PathNet().layers] == [6, 6, 6]


@pytest.mark.parametrize("size", [8, 9, 15, 28])
def test_images_of_many_sizes_fit(size: int) -> None:
    assert PathNet(channels=1, size=size, filters=2)(torch.randn(2, 1, size, size)).shape == (2, 10)


def test_too_small_images_are_refused() -> None:
    with pytest.raises(SettingError, match="size must be at least 8 pixels for layers=3, got 7"):
        PathNet(size=7)


@pytest.mark.parametrize(("layers", "modules"), [(0, 6), (3, 0)])
def test_empty_networks_are_refused(layers: int, modules: int) -> None:
    with pytest.raises(SettingError, match=f"layers={layers}, modules={modules}"):
        PathNet(layers=layers, modules=modules)
