"""What a captured step computes, beside the step itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import bow
from bow.errors import CaptureError, LossError, ModelError
from bow.graph.learning_step import step_from_loss
from bow.planning.tiles import capture_operators
from bow.planning.tiles.agreement import check_agreement

BATCH = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return (4 * inputs).round() / 4

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Tanh(torch.autograd.Function):
    """With the backward pass that autograd has, too."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        outputs = inputs.tanh()
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (1 - ctx.saved_tensors[0] ** 2)  # type: ignore[no-any-return]


class Net(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(4, 6), nn.Linear(6, 3), between

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.between(self.first(inputs)))  # type: ignore[no-any-return]


def hooked(hidden: Tensor) -> Tensor:
    hidden.register_hook(lambda gradient: 0 * gradient)
    return hidden


def forgotten(hidden: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: 0 * tensor, lambda tensor: tensor):
        return hidden.square()


def from_zero(model: nn.Module) -> nn.Module:
    """No gradient comes through its last layer at first."""
    nn.init.zeros_(model.last.weight)
    return model


def with_hook(register: str, *layers: nn.Module) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))
    getattr(model[-1], register)(lambda module, *gradients: tuple(0 * each for each in gradients[0]))
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "straight-through": (lambda: Net(Rounded.apply), "lose the backward pass of Rounded: .*'first.weight'"),
    "reversal": (lambda: Net(Reversed.apply), "lose the backward pass of Reversed: .*'first.weight'"),
    "straight-through from zero": (lambda: from_zero(Net(Rounded.apply)), "lose the backward pass of Rounded: "),
    "reversal from zero": (lambda: from_zero(Net(Reversed.apply)), "lose the backward pass of Reversed: "),
    "tensor hook from zero": (lambda: from_zero(Net(hooked)), "lose a tensor hook after operator 'first'"),
    "checkpointed": (
        lambda: Net(lambda hidden: checkpoint(Rounded.apply, hidden, use_reentrant=False)),
        "lose the backward pass of Rounded",
    ),
    "tensor hook": (lambda: Net(hooked), "lose a tensor hook after operator 'first'.*'first.weight'"),
    "saved tensors": (lambda: Net(forgotten), "lose a tensor hook after operator 'first'"),
    "backward hook": (lambda: with_hook("register_full_backward_hook"), "lose the backward hook of module '1': "),
    "backward pre-hook": (
        lambda: with_hook("register_full_backward_pre_hook"),
        "lose the backward hook of module '1': ",
    ),
}


class Updating(nn.Module):
    """Calls an operator that writes to its arguments, which its signature does not say."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.native_batch_norm(inputs, None, None, self.mean, self.variance, True, 0.1, 1e-5)[0]


REFUSED["buffer"] = lambda: Net(Updating()), "lose a change in place, or similar: the buffer 'between.mean'"


@pytest.mark.parametrize("case", REFUSED)
def test_a_strategy_that_would_lose_a_gradient_is_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(CaptureError, match=f"{message}.*, or train without a partition") as raised:
        bow.plan(make().train(), BATCH, F.cross_entropy, budget_s=None, proposals=1, progress=False)
    assert "\n" not in str(raised.value)


TAKEN: dict[str, Callable[[], nn.Module]] = {
    "autograd function": lambda: Net(Tanh.apply),
    "from zero": lambda: from_zero(Net(Tanh.apply)),
    "complex": lambda: Net(lambda hidden: torch.fft.rfft(hidden, n=10).abs()),
    "complex products": lambda: Net(lambda hidden: torch.fft.ifft(torch.fft.fft(hidden) * hidden).real),
    "detached": lambda: Net(lambda hidden: hidden + (hidden.round() - hidden).detach()),
    "checkpoint": lambda: Net(lambda hidden: checkpoint(torch.tanh, hidden, use_reentrant=False)),
    "forward hook": lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)),
    "a weight twice": lambda: Twice(),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3))),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Dropout1d(0.2), nn.Linear(6, 3)),
    "noise alone": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)),
    "recurrent": lambda: nn.Sequential(nn.LSTM(4, 3, 2, dropout=0.5), Last()),
    "not a number": lambda: Net(lambda hidden: hidden / 0 * 0),
    "half": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).bfloat16(),
}


class Twice(nn.Module):
    """One operator reads a weight twice, as a penalty written as a product does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.square = nn.Linear(4, 3), nn.Parameter(torch.rand(4, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        penalty = (self.layer.weight * self.layer.weight).sum()
        return self.layer(inputs @ (self.square @ self.square)) + penalty * inputs[:, :3]  # type: ignore[no-any-return]


class Last(nn.Module):
    def forward(self, made: tuple[Tensor, Any]) -> Tensor:
        return made[0]


@pytest.mark.parametrize("case", TAKEN)
def test_a_step_that_keeps_its_gradients_is_taken(case: str) -> None:
    torch.manual_seed(0)
    model, batch = TAKEN[case]().train(), BATCH
    if case == "forward hook":
        model[0].register_forward_hook(lambda module, inputs, outputs: outputs.square())
    if case == "half":
        batch = BATCH[0].bfloat16(), BATCH[1]
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    check_agreement(capture_operators(model, batch, F.cross_entropy), model, batch, step_from_loss(F.cross_entropy))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_has_no_values_is_not_compared() -> None:
    model, batch = Net(Rounded.apply).to("meta"), tuple(each.to("meta") for each in BATCH)
    captured = capture_operators(model, batch, F.cross_entropy)
    check_agreement(captured, model, batch, step_from_loss(F.cross_entropy))


def test_what_the_host_has_no_memory_for_is_not_compared_which_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.planning.tiles.agreement.host_memory", lambda: (1, 1))
    model = Net(Rounded.apply)
    captured = capture_operators(model, BATCH, F.cross_entropy)
    with pytest.warns(UserWarning, match="captured step of Net was not compared with PyTorch: not enough memory"):
        check_agreement(captured, model, BATCH, step_from_loss(F.cross_entropy))


def test_a_plan_refuses_what_nobody_would_train_and_hooks_of_parameters() -> None:
    scale = torch.ones((), requires_grad=True)
    with pytest.raises(LossError, match=r"depends on 'loss.scale'"):
        bow.plan(nn.Linear(4, 3), BATCH, lambda outputs, targets: F.cross_entropy(scale * outputs, targets))
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(ModelError, match="parameter 'weight' has a gradient hook"):
        bow.plan(model, BATCH, F.cross_entropy)
