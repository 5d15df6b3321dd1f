import functools

import pytest
import torch
from torch import Tensor, nn

from bow.doctor import MemoryNeed, estimate_memory
from bow.doctor.memory import activation_bytes, num_state_tensors

FLOAT = 4


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))


class ReadsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) if float(inputs.sum()) > 0 else inputs


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (functools.partial(torch.optim.SGD, lr=0.1), 0),
        (functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), 1),
        (torch.optim.AdamW, 2),
        (functools.partial(torch.optim.Adam, amsgrad=True), 3),
    ],
)
def test_state_tensors_of_optimizers_are_counted(optimizer: type[torch.optim.Optimizer], expected: int) -> None:
    assert num_state_tensors(optimizer) == expected


def test_memory_follows_the_formula() -> None:
    need = estimate_memory(mlp, torch.zeros(8, 10), torch.optim.AdamW, learners=4, learners_at_once=2)
    parameters = 10 * 20 + 20 + 20 * 5 + 5
    assert need.model_bytes == FLOAT * parameters
    assert need.activation_bytes is not None
    assert need.total_bytes == ((3 + 2) * 4 + 4) * FLOAT * parameters + 2 * need.activation_bytes


def test_activations_are_what_backward_needs() -> None:
    # The batch [8, 10], the result of the ReLU [8, 20], and the outputs [8, 5].
    assert activation_bytes(mlp(), torch.zeros(8, 10)) == FLOAT * 8 * (10 + 20 + 5)


def test_activations_grow_with_the_batch() -> None:
    assert activation_bytes(mlp(), torch.zeros(16, 10)) == 2 * activation_bytes(mlp(), torch.zeros(8, 10))  # type: ignore[operator]


def test_activations_of_a_model_that_reads_values_are_unknown() -> None:
    model = ReadsValues()
    need = estimate_memory(lambda: model, torch.zeros(8, 10), torch.optim.AdamW, learners=1, learners_at_once=1)
    assert need.activation_bytes is None
    assert need.total_bytes == (3 + 2 + 4) * need.model_bytes


def test_estimate_leaves_the_model_where_it_is() -> None:
    model = mlp()
    estimate_memory(lambda: model, torch.zeros(8, 10), torch.optim.AdamW, learners=1, learners_at_once=1)
    assert model[0].weight.device.type == "cpu"


def test_frozen_parameters_take_no_rows() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    need = estimate_memory(lambda: model, torch.zeros(8, 10), torch.optim.AdamW, learners=1, learners_at_once=1)
    assert need.model_bytes == FLOAT * (20 * 5 + 5)


def test_learners_add_up() -> None:
    need = MemoryNeed(model_bytes=100, learners=3, state_tensors=1, activation_bytes=7, learners_at_once=3)
    assert (need.learner_bytes, need.device_bytes, need.total_bytes) == (400, 400, 1621)
