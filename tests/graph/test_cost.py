import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import bow
from bow.graph import kinds
from bow.graph.operator import TensorSpec
from tests.graph.cases import PAPER_MODELS, captured, onednn


def _known(kind: str) -> bool:
    return not kinds.is_update(kind) and kinds.kernel_of(kind).overloadpacket in flop_registry


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_flops_are_those_that_torch_counts_in_an_eager_step(name: str) -> None:
    case = PAPER_MODELS[name]
    model, graph = captured(name)
    inputs, targets = case.batch()
    with onednn(case.mkldnn), FlopCounterMode(display=False) as counter:
        case.loss(model(inputs), targets).backward()
    model.zero_grad()
    counted = sum(operator.flops for operator in graph.operators if _known(operator.kind))
    assert counted == counter.get_total_flops()
    assert graph.flops > counted  # elementwise operators count too


def test_bytes_are_those_of_distinct_tensors_and_views_move_none() -> None:
    model = nn.Linear(8, 4)
    graph = bow.capture(model, (torch.randn(2, 8), torch.randn(2, 4)), F.mse_loss)
    (product,) = [operator for operator in graph.operators if operator.kind == "aten.addmm.default"]
    assert product.flops == 2 * 2 * 8 * 4
    assert product.bytes_moved == 4 * (2 * 8 + 8 * 4 + 4 + 2 * 4)
    views = [operator for operator in graph.operators if operator.is_view]
    assert views
    assert sum(operator.bytes_moved + operator.flops for operator in views) == 0


def test_an_expanded_tensor_is_read_once() -> None:
    assert TensorSpec.of(torch.zeros(3, 1).expand(3, 1000)).num_bytes == 12
    assert TensorSpec.of(torch.zeros(0, 5)).num_bytes == 0


def test_specs_ignore_the_strides_of_dimensions_of_one() -> None:
    spec = TensorSpec.of(torch.zeros(2, 1, 3))
    assert spec.lies_like(TensorSpec((2, 1, 3), (3, 77, 1), torch.float32))
    assert not spec.lies_like(TensorSpec((2, 1, 3), (1, 3, 2), torch.float32))
    assert not spec.lies_like(TensorSpec((2, 1, 3), (3, 3, 1), torch.float64))
