import pytest
import torch
from torch import nn

from bow.errors import SettingError
from bow.models import BottleneckResNet, ResNet
from bow.models.resnet import BottleneckBlock, ResidualBlock


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (32, 464_154)])
def test_depth_counts_the_layers_with_weights(depth: int, parameters: int) -> None:
    model = ResNet(depth)
    assert sum(isinstance(module, (nn.Conv2d, nn.Linear)) for module in model.modules()) == depth
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("depth", [2, 10, 31, -4])
def test_other_depths_are_refused(depth: int) -> None:
    with pytest.raises(SettingError, match=f"6n \\+ 2, such as 8, 20 or 32, got {depth}"):
        ResNet(depth)


def test_shortcut_takes_every_second_pixel_and_pads_with_zero_channels() -> None:
    block = ResidualBlock(2, 4, stride=2)
    nn.init.zeros_(block.norm2.weight)
    images = torch.rand(3, 2, 6, 6)
    outputs = block(images)
    assert torch.equal(outputs[:, 1:3], images[:, :, ::2, ::2])
    assert outputs[:, [0, 3]].abs().sum() == 0


@pytest.mark.parametrize("depth", [50, 101, 152])
def test_depth_of_bottleneck_networks_counts_the_layers_with_weights_shortcuts_aside(depth: int) -> None:
    with torch.device("meta"):
        model = BottleneckResNet(depth, width=2)
    layers = [name for name, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    assert sum("shortcut" not in name for name in layers) == depth
    assert sum("shortcut" in name for name in layers) == 4


@pytest.mark.parametrize(("stem", "size"), [("cifar", (4, 4)), ("imagenet", (1, 1))])
def test_stems_leave_small_images_whole_or_a_quarter_of_them(stem: str, size: tuple[int, int]) -> None:
    model = BottleneckResNet(50, channels=1, width=2, stem=stem)
    features = model.stages(model.stem(torch.randn(2, 1, 32, 32)))
    assert features.shape == (2, 64, *size)


def test_a_block_whose_convolutions_give_nothing_is_its_shortcut() -> None:
    images = torch.rand(3, 8, 6, 6)
    plain, strided = BottleneckBlock(8, 2, stride=1), BottleneckBlock(8, 3, stride=2)
    for block in (plain, strided):
        nn.init.zeros_(block.norm3.weight)
    assert torch.equal(plain(images), images)
    assert torch.equal(strided(images), strided.shortcut(images).relu())
    assert strided(images).shape == (3, 12, 3, 3)


def test_other_bottleneck_networks_are_refused() -> None:
    with pytest.raises(SettingError, match="depth must be 50, 101 or 152, got 32"):
        BottleneckResNet(32)
    with pytest.raises(SettingError, match="stem must be cifar or imagenet, got 'mnist'"):
        BottleneckResNet(stem="mnist")
