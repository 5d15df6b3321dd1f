import pytest
import torch
from torch import nn

from bow.errors import SettingError
from bow.models import ResNet
from bow.models.resnet import ResidualBlock


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
