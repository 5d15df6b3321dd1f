"""Networks of convolutions."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bow.errors import DataError, SettingError
from bow.models import AlexNet, GoogLeNet, InceptionV3, PathNet
from bow.models.convolutional import Branches, ConvNorm, PathNetLayer, scaled

SMALLEST = {AlexNet: 63, GoogLeNet: 15, InceptionV3: 75}

each_network = pytest.mark.parametrize(("network", "smallest"), SMALLEST.items())


def test_outputs_of_branches_lie_side_by_side_in_their_order() -> None:
    first, second = ConvNorm(3, 2, 1), nn.MaxPool2d(3, stride=1, padding=1)
    images = torch.randn(4, 3, 5, 5)
    outputs = Branches([first, second]).eval()(images)
    assert torch.equal(outputs[:, :2], first(images))
    assert torch.equal(outputs[:, 2:], second(images))


@each_network
def test_the_smallest_images_and_larger_ones_that_are_not_square_fit(
    network: Callable[..., nn.Module], smallest: int
) -> None:
    model = network(classes=7, channels=1, width=0.03)
    assert model(torch.randn(3, 1, smallest, smallest)).shape == (3, 7)
    assert model(torch.randn(3, 1, smallest, smallest + 30)).shape == (3, 7)


@each_network
def test_smaller_images_are_refused(network: Callable[..., nn.Module], smallest: int) -> None:
    model = network(width=0.03)
    with pytest.raises(DataError, match=f"at least {smallest}x{smallest} pixels, got 100x{smallest - 1}; enlarge"):
        model(torch.randn(2, 3, 100, smallest - 1))


@each_network
@pytest.mark.parametrize("width", [0, -1.0])
def test_no_width_is_refused(network: Callable[..., nn.Module], smallest: int, width: float) -> None:
    with pytest.raises(SettingError, match=f"width must be more than 0, got {width}"):
        network(width=width)


@each_network
def test_dropout_acts_in_training_only(network: Callable[..., nn.Module], smallest: int) -> None:
    model, images = network(width=0.05, dropout=0.9), torch.randn(2, 3, smallest, smallest)
    model(images)
    frozen = [module.eval() for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(frozen) == sum(isinstance(module, nn.Conv2d) for module in model.modules()) or network is AlexNet
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


@each_network
def test_width_multiplies_the_filters_of_every_convolution(network: Callable[..., nn.Module], smallest: int) -> None:
    with torch.device("meta"):
        narrow, published = (
            [module.out_channels for module in network(width=width).modules() if isinstance(module, nn.Conv2d)]
            for width in (0.25, 1)
        )
    assert narrow == [scaled(filters, 0.25) for filters in published]
    assert max(published) > 4 * min(narrow)


@pytest.mark.parametrize(("network", "convolutions", "branches"), [(GoogLeNet, 57, [4] * 9), (InceptionV3, 94, None)])
def test_modules_have_their_published_convolutions_and_branches(
    network: Callable[..., nn.Module], convolutions: int, branches: list[int] | None
) -> None:
    model = network(width=0.05)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == convolutions
    found = [len(module) for module in model.modules() if isinstance(module, Branches)]
    expected = branches or [4, 4, 4, 3, 4, 4, 4, 4, 3, 4, 2, 2, 4, 2, 2]
    assert found == expected


def test_inception_s_parts_have_the_published_shapes() -> None:
    shapes = {}
    with torch.device("meta"):
        model = InceptionV3(width=1)
        for name, module in model.named_children():
            module.register_forward_hook(
                lambda _, __, output, name=name: shapes.update({name: tuple(output.shape[1:])})
            )
        model(torch.empty(2, 3, 299, 299))
    assert [shapes[part] for part in ("stem", "modules35", "reduction17")] == [
        (192, 35, 35),
        (288, 35, 35),
        (768, 17, 17),
    ]
    assert [shapes[part] for part in ("modules17", "reduction8")] == [(768, 17, 17), (1280, 8, 8)]
    assert shapes["modules8"] == (2048, 8, 8)


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
