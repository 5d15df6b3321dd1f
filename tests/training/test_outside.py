"""Steps that depend on tensors which are not the model's, or change them."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bow
from bow.errors import LossError
from tests.grouped import of_replicas
from tests.training.blueprints import Train

X, Y = torch.randn(48, 5, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3

ENGINES = ["eager", "fused", "graph", "streams"]


class Scaled(nn.Module):
    """A loss with a temperature of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs * self.temperature, targets)


class Centred(nn.Module):
    """A loss with running statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.mean.lerp_(outputs.detach().mean(0), 0.1)
        return F.cross_entropy(outputs - self.mean, targets)


class Assigned(Centred):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.mean = self.mean.lerp(outputs.detach().mean(0), 0.1)
        return F.cross_entropy(outputs - self.mean, targets)


class Settings:
    scale = torch.ones((), requires_grad=True)


@functools.cache
def hidden() -> nn.Parameter:
    return nn.Parameter(torch.ones(()))


def critical(critic: nn.Module) -> Callable[..., Tensor]:
    return lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]) + critic(model(batch[0])).mean()


def scaled(scale: Any) -> Callable[..., Tensor]:
    return lambda model, batch: F.cross_entropy(model(batch[0]) * scale["by"], batch[1])


def penalised(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A gradient penalty: the leaf that the loss depends on is made by the step."""
    inputs = batch[0].detach().clone().requires_grad_()
    outputs = model(inputs)
    (slope,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
    return F.cross_entropy(outputs, batch[1]) + slope.square().mean()


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "loss": (lambda: {"loss": Scaled()}, r"'loss.temperature' of shape \(\)"),
    "partial": (lambda: {"loss": functools.partial(Scaled())}, "'loss.func.temperature'"),
    "method": (lambda: {"loss": Scaled().forward}, "'loss.self.temperature'"),
    "critic": (lambda: {"step": critical(nn.Linear(3, 1))}, r"'critic.weight' of shape \(1, 3\)|'critic.bias'"),
    "tensor": (lambda: {"step": scaled({"by": torch.ones((), requires_grad=True)})}, "'scale.by'"),
    "class": (
        lambda: {"loss": lambda outputs, targets: F.cross_entropy(outputs * Settings.scale, targets)},
        "'loss.Settings.scale'",
    ),
    "hidden": (
        lambda: {"loss": lambda outputs, targets: F.cross_entropy(outputs * hidden(), targets)},
        r"a parameter of shape \(\)",
    ),
    "buffer": (lambda: {"loss": Centred()}, "changes 'loss.mean'"),
    "assigned": (lambda: {"loss": Assigned()}, "changes 'loss.mean'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_training_refuses_what_nobody_would_train(train: Train, model: nn.Module, case: str, tmp_path: Path) -> None:
    make, message = REFUSED[case]
    with pytest.raises(LossError, match=message):
        train(model, (X, Y), **make())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", [case for case in REFUSED if case != "hidden"])
def test_replicas_refuse_it_in_every_engine(model: nn.Module, case: str, engine: Any) -> None:
    make, message = REFUSED[case]
    replicas = bow.Replicas(model, **of_replicas(learners=2, engine=engine, device="cpu", **make()))
    before = replicas.W.clone()
    with pytest.raises(LossError, match=message):
        replicas.round([(X[:8], Y[:8]), (X[8:16], Y[8:16])])
    assert torch.equal(replicas.W, before)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": nn.CrossEntropyLoss(weight=torch.ones(3))},
        {"loss": Scaled().requires_grad_(False)},
        {"step": critical(nn.Linear(3, 1).requires_grad_(False))},
        {"step": penalised},
    ],
    ids=["weights", "frozen", "frozen-critic", "penalty"],
)
def test_what_nothing_has_to_train_is_taken(model: nn.Module, settings: dict[str, Any]) -> None:
    calls: list[int] = []
    inner = settings.get("step")
    if inner is penalised:
        settings = {"step": lambda model, batch: calls.append(1) or inner(model, batch)}
    replicas = bow.Replicas(model, **of_replicas(learners=2, engine="eager", device="cpu", **settings))
    assert replicas.round([(X[:8], Y[:8]), (X[8:16], Y[8:16])]).isfinite().all()
    assert len(calls) in (0, 2)  # a step that depends on nothing else is not called but to learn


class Keeping(nn.Module):
    """Keeps what it made of its last batch, which requires a gradient and cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.last: Any = None
        self.features: dict[str, Tensor] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        self.last = self.linear(inputs)
        made: Tensor = self.last
        return made


class KeepingOnce(Keeping):
    """Computes at its first batch what all others read."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.last is None:
            self.last = torch.arange(3.0)
        made: Tensor = self.linear(inputs) + self.last
        return made


class KeepingInADictionary(Keeping):
    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.linear(inputs)
        self.features["last"] = made
        return made


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("build", "loss", "engine"),
    [
        (Keeping, F.cross_entropy, "eager"),
        (Keeping, nn.CrossEntropyLoss(weight=torch.ones(3)), "eager"),
        (KeepingInADictionary, F.cross_entropy, "eager"),
        (KeepingOnce, F.cross_entropy, "graph"),
        (KeepingOnce, nn.CrossEntropyLoss(weight=torch.ones(3)), "graph"),
    ],
)
def test_a_model_may_keep_what_it_has_made(train: Train, build: type[nn.Module], loss: Any, engine: str) -> None:
    result = train(build(), (X, Y), loss, engine=engine)
    assert result.engine == engine
    assert math.isfinite(result.history[-1]["train_loss"])


class Force(nn.Module):
    """The gradient of an energy, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        where = inputs.clone().requires_grad_()
        (made,) = torch.autograd.grad(self.energy(where).sum(), where, create_graph=True)
        return made


def test_a_model_may_take_a_gradient_of_its_own(train: Train) -> None:
    result = train(Force(), (X, X), F.mse_loss)
    assert math.isfinite(result.history[-1]["train_loss"])


class Held(nn.Module):
    """Reaches a parameter by its name and through a list."""

    def __init__(self, is_used: bool) -> None:
        super().__init__()
        self.head, self.is_used = nn.Linear(5, 3), is_used
        self.scale = nn.Parameter(torch.ones(()))
        self.held = [self.scale]

    def forward(self, inputs: Tensor) -> Tensor:
        scale = self.held[0] * self.scale if self.is_used else self.scale
        return self.head(inputs) * scale


@pytest.mark.parametrize("engine", ENGINES)
def test_a_parameter_that_the_loss_reaches_through_a_list_is_refused(train: Train, engine: str) -> None:
    with pytest.raises(LossError, match="uses parameter 'scale' other than by its name"):
        train(Held(is_used=True), (X, Y), engine=engine, run_dir=None)
    train(Held(is_used=False), (X, Y), engine=engine, run_dir=None)


@pytest.mark.parametrize("engine", [*ENGINES, bow.Engine("eager", compile=True)], ids=str)
def test_a_value_that_the_step_reads_through_a_list_is_each_learners_own_or_refused(train: Train, engine: Any) -> None:
    def step(model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return loss, {"ratio": model.scale / model.held[0].detach()}

    settings: dict[str, Any] = {"step": step, "learners": 2, "engine": engine, "run_dir": None}
    if engine in ("eager", "streams"):
        result = train(Held(is_used=False), (X, Y), None, **settings)
        assert [record["train_ratio"] for record in result.history] == [1.0] * len(result.history)
        return
    with pytest.raises(LossError, match="uses parameter 'scale' other than by its name"):
        train(Held(is_used=False), (X, Y), None, **settings)


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_that_the_optimizer_leaves_out_are_not_taken_for_held_ones(train: Train, engine: str) -> None:
    def last_layer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[2:], lr=0.1)

    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    result = train(model, (X, Y), engine=engine, optimizer=last_layer, run_dir=None)
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[1].weight, model[1].weight)


@pytest.mark.parametrize("where", ["a deque", "a model of many modules"])
def test_a_held_parameter_is_found_in(where: str, train: Train) -> None:
    model = Held(is_used=True)
    if where == "a deque":
        model.held = collections.deque(model.held)  # type: ignore[assignment]
    else:
        model.others = nn.ModuleList(nn.Dropout() for _ in range(700))
    with pytest.raises(LossError, match="uses parameter 'scale' other than by its name"):
        train(model, (X, Y), engine=bow.Engine("eager", accumulate=2), run_dir=None)


def test_a_loss_may_have_parameters_of_its_own_kind(train: Train) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parameters = {"weight": 2.0}  # type: ignore[assignment]

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return self.parameters["weight"] * F.cross_entropy(outputs, targets)  # type: ignore[index]

    assert train(nn.Linear(5, 3), (X, Y), Weighted(), run_dir=None).history


def test_what_the_step_reaches_is_looked_for_in_a_part_of_a_batch_that_is_trained_in_parts(train: Train) -> None:
    sizes = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(targets))
        return F.cross_entropy(outputs, targets)

    train(Held(is_used=False), (X, Y), loss, engine=bow.Engine("eager", accumulate=4), batch_size=8, run_dir=None)
    assert sizes.count(8) == 1  # the look at the first batch
    assert set(sizes) <= {8, 2}


class Stacked(nn.Module):
    """A layer in a plain list, whose parameters are registered beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.layers = [nn.Linear(3, 3)]
        self.weights = nn.ParameterList(self.layers[0].parameters())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers[0](self.head(inputs))


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_of_layers_in_a_list_are_refused(train: Train, engine: str) -> None:
    with pytest.raises(LossError, match=r"uses parameter 'weights\.\d' other than by its name"):
        train(Stacked(), (X, Y), engine=engine, run_dir=None)


@pytest.mark.parametrize("engine", [bow.Engine("graph", accumulate=2), bow.Engine("eager", compile=True)], ids=str)
def test_members_with_a_parameter_in_a_list_are_refused(engine: bow.Engine, tmp_path: Path) -> None:
    with pytest.raises(LossError, match="uses parameter 'scale' other than by its name"):
        bow.sweep(
            functools.partial(Held, is_used=True), (X, Y), F.cross_entropy, variants=bow.grid(seed=range(2)),
            engine=engine, run=bow.Run(tmp_path / "sweep", progress=False),
        )  # fmt: skip
