"""What a device has of the weights."""

from __future__ import annotations

import pytest
import torch

from bow.errors import SettingError
from bow.planning.tiles.communication import ProcessGroup
from bow.planning.tiles.device_state import Cell, DeviceWeights


def weights(*dtypes: torch.dtype) -> DeviceWeights:
    cells = [Cell(str(number), ((0, 2),), (0,), is_trained=True, operator=0) for number in range(len(dtypes))]
    values = {str(number): torch.ones(2, dtype=dtype) for number, dtype in enumerate(dtypes)}
    return DeviceWeights(cells, values, ProcessGroup(torch.device("cpu"), is_alone=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_weights_in_a_row_keep_their_type(dtype: torch.dtype) -> None:
    own = weights(dtype)
    row = own.flattened()
    assert row.dtype == dtype
    row.add_(1)
    assert [each.tolist() for each in own.parameters.values()] == [[2, 2]]


def test_two_weights_never_share_a_gradient() -> None:
    """Autograd gives one to both weights of a sum, and Nesterov's steps add to it."""
    own, gradient = weights(torch.float32, torch.float32), torch.ones(2)
    for name in ("0", "1"):
        own.add_gradient(name, ((0, 2),), gradient)
    own.finish_sums()
    first, second = (each.grad for each in own.parameters.values())
    assert first is not None
    assert second is not None
    first.zero_()
    assert second.tolist() == [1, 1]


def test_a_device_without_weights_has_an_empty_row() -> None:
    assert weights().flattened().numel() == 0


def test_weights_of_several_types_are_refused() -> None:
    with pytest.raises(SettingError, match="averaging needs a single parameter dtype, the model has several"):
        weights(torch.float32, torch.float64).flattened()
