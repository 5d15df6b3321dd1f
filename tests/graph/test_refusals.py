import logging
import logging.handlers
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bow
from bow.errors import CaptureError, DataError, LossError, ModelError, OptimizerError

CALLS: list[int] = []


class Doubled(torch.autograd.Function):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Counting(Doubled):
    """Counts its calls outside: a side effect that no graph repeats."""

    @staticmethod
    def forward(ctx, x):
        CALLS.append(1)
        return x * 2


class Alternating(Doubled):
    turns = 0

    @staticmethod
    def forward(ctx, x):
        Alternating.turns += 1
        return x * 2 if Alternating.turns % 2 else x + x


class Numpy(Doubled):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)


class Model(nn.Module):
    def __init__(self, run: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.dropped = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5))
        self.average = torch.zeros(5)
        self.register_buffer("late", None)
        self.calls = 0
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _counted(model: Model, x: Tensor) -> Tensor:
    model.calls += 1
    return model.linear(x) * model.calls


def _averaged(model: Model, x: Tensor) -> Tensor:
    outputs = model.linear(x)
    model.average.add_(outputs.detach().mean(0))
    return outputs


def _clamped(model: Model, x: Tensor) -> Tensor:
    model.linear.weight.data.clamp_(-0.1, 0.1)
    return model.linear(x)


def _clamped_at_once(model: Model, x: Tensor) -> Tensor:
    torch._foreach_clamp_min_([model.linear.weight.data, model.linear.bias.data], -0.1)
    return model.linear(x)


def _scaled_by_row(model: Model, x: Tensor) -> Tensor:
    for row in model.linear.weight.data:
        row.div_(row.norm())
    return model.linear(x)


def _renormalised(model: Model, x: Tensor) -> Tensor:
    model.linear.weight.data = torch.renorm(model.linear.weight.data, 2, 0, 0.1)
    return model.linear(x)


def _made_late(model: Model, x: Tensor) -> Tensor:
    outputs = model.linear(x)
    mean = outputs.detach().mean(0)
    model.late = mean if model.late is None else 0.9 * model.late + 0.1 * mean
    return outputs - model.late


REFUSED = {
    "late buffer": (_made_late, "makes buffer 'late'"),
    "parameter in place": (_clamped, "changes a parameter in place (aten.clamp_.default)"),
    "parameters at once": (_clamped_at_once, "changes a parameter in place (aten._foreach_clamp_min_.Scalar)"),
    "rows of a parameter": (_scaled_by_row, "changes a parameter in place (aten.div_.Tensor)"),
    "parameter's data": (_renormalised, "assigns to the data of parameter 'linear.weight'"),
    "item": (lambda m, x: m.linear(x) * x.sum().item(), "reads a tensor's value in Python"),
    "if": (lambda m, x: m.linear(x) if x.sum() > 0 else x, "reads a tensor's value in Python"),
    "mask": (lambda m, x: m.linear(x)[x > 0], "shape depends on values"),
    "numpy": (lambda m, x: m.linear(x) + torch.tensor(x.numpy()), "outside torch"),
    "numpy in autograd": (lambda m, x: Numpy.apply(m.linear(x)), "outside torch"),
    "counting autograd": (lambda m, x: Counting.apply(m.linear(x)), "changes variable 'CALLS' of Counting"),
    "alternating autograd": (lambda m, x: Alternating.apply(m.linear(x)), "changes Alternating.'turns'"),
    "attribute": (_counted, "changes attribute 'calls' of the model"),
    "tensor attribute": (_averaged, "register_buffer"),
    "random": (lambda m, x: m.linear(x) * random.random(), "Python's random"),
    "numpy.random": (lambda m, x: m.linear(x) * float(np.random.rand()), "numpy.random"),
    "checkpointed dropout": (
        lambda m, x: checkpoint(m.dropped, m.linear(x), use_reentrant=False),
        "draws random numbers in its backward pass",
    ),
    "generator": (
        lambda m, x: m.linear(x) + torch.rand(5, generator=torch.Generator()),
        "default random number generator",
    ),
    "failing": (lambda m, x: m.linear(x @ x), "run it once on this batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_would_get_wrong_is_refused_with_the_reason(name: str) -> None:
    run, reason = REFUSED[name]
    with pytest.raises(CaptureError) as refusal:
        bow.capture(Model(run), torch.randn(4, 5), step=lambda model, x: model(x).sum())
    message = str(refusal.value)
    assert reason in message
    assert "\n" not in message


def test_what_fails_is_told_by_the_error_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's log has ten lines for it, which look like a traceback."""
    log, logged = logging.getLogger("torch._subclasses.fake_tensor"), logging.handlers.BufferingHandler(capacity=100)
    monkeypatch.setattr(log, "disabled", False)  # whatever else ran in this process
    log.addHandler(logged)
    try:
        with pytest.raises(CaptureError, match="must have same reduction dim"):
            bow.capture(nn.Linear(3, 3), torch.randn(2, 4), step=lambda model, x: model(x).sum())
    finally:
        log.removeHandler(logged)
    assert logged.buffer == []
    assert not log.disabled


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(4, 3, sparse=True)
    with pytest.raises(CaptureError, match="sparse=False"):
        bow.capture(model, torch.tensor([1, 2]), step=lambda model, x: model(x).sum())


def test_old_torch_is_refused_and_new_torch_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = torch.randn(2, 3), torch.randn(2, 3)
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(CaptureError, match=r"2\.10 or newer, this is 2\.9\.1"):
        bow.capture(nn.Linear(3, 3), batch, nn.functional.mse_loss)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.warns(UserWarning, match=r"tried up to torch 2\.\d+, this is 2\.99"):
        bow.capture(nn.Linear(3, 3), batch, nn.functional.mse_loss)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ModelError, "must be an nn.Module", {"model": "net"}),
        (ModelError, "lazy modules", {"model": nn.LazyLinear(2)}),
        (ModelError, "no trainable parameters", {"model": nn.ReLU()}),
        (LossError, "either loss or step, got neither", {"loss": None}),
        (LossError, "either loss or step, got both", {"step": lambda model, batch: 0}),
        (LossError, r"one of shape \(2, 3\)", {"loss": lambda outputs, targets: outputs}),
        (LossError, "got float", {"loss": lambda outputs, targets: 1.0}),
        (LossError, "does not depend", {"loss": lambda outputs, targets: targets.sum()}),
        (DataError, r"batch\[1\] is a int", {"batch": (torch.randn(2, 3), 3)}),
        (OptimizerError, "it returned int", {"optimizer": lambda parameters: 3}),
        (OptimizerError, "not a parameter", {"optimizer": lambda _: torch.optim.SGD([torch.zeros(2)], lr=0.1)}),
    ],
)
def test_wrong_arguments_are_one_sentence(error: type[Exception], match: str, arguments: dict) -> None:
    given = {"model": nn.Linear(3, 3), "batch": (torch.randn(2, 3), torch.randn(2, 3)), "loss": nn.functional.mse_loss}
    with pytest.raises(error, match=match):
        bow.capture(**(given | arguments))


def test_a_hook_on_a_parameter_is_refused() -> None:
    model = nn.Linear(4, 2)
    model.bias.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(ModelError, match="parameter 'bias' has a gradient hook"):
        bow.capture(model, (torch.randn(3, 4), torch.randn(3, 2)), nn.functional.mse_loss)
