import pytest
import torch
from torch import nn

from bow.errors import OptimizerError
from bow.replicas import ParameterLayout


def layout_of(model: nn.Module) -> ParameterLayout:
    return ParameterLayout(model, [list(model.parameters())])


def test_a_row_holds_every_parameter_where_the_layout_says() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    layout = layout_of(model)
    row = torch.zeros(layout.row_length)
    layout.fill(row, model)
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(row[: layout.num_parameters], expected)
    for name, view in layout.views(row).items():
        assert torch.equal(view, dict(model.named_parameters())[name])


def test_rows_are_padded_to_whole_cache_lines_with_zeros_that_get_no_gradient() -> None:
    layout = layout_of(nn.Linear(3, 1))
    row = torch.ones(layout.row_length, requires_grad=True)
    loss = sum(view.sum() for view in layout.views(row).values())
    (gradient,) = torch.autograd.grad(loss, row)
    assert layout.row_length == 16
    assert gradient.tolist() == [1.0] * 4 + [0.0] * 12


def test_a_tied_parameter_has_one_slot() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    layout = layout_of(model)
    assert layout.num_parameters == 16
    assert layout.slots[0].names == ("0.weight", "1.weight")


def test_channels_last_survives_the_row() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    layout = layout_of(model)
    row = torch.zeros(layout.row_length)
    layout.fill(row, model)
    weight = layout.views(row)["weight"]
    assert torch.equal(weight, model.weight)
    assert weight.stride() == model.weight.stride()


def test_each_optimizer_group_is_one_contiguous_slice() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    weights = [p for p in model.parameters() if p.dim() == 2]
    biases = [p for p in model.parameters() if p.dim() == 1]
    layout = ParameterLayout(model, [biases, weights])
    assert layout.group_slices == [slice(0, 3), slice(3, layout.row_length)]
    assert [slot.names[0] for slot in layout.slots] == ["0.bias", "1.bias", "0.weight", "1.weight"]


def test_a_group_with_a_foreign_tensor_is_refused() -> None:
    with pytest.raises(OptimizerError, match=r"shape \(5,\) that is not a parameter"):
        ParameterLayout(nn.Linear(2, 2), [[nn.Parameter(torch.zeros(5))]])
