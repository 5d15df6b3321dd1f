import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from bow import Replicas
from bow.errors import OptimizerError
from bow.replicas import LearnerGroup, num_state_tensors
from bow.replicas.optimizer import make_optimizer

CPU = torch.device("cpu")

ELEMENTWISE = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "SGD foreach": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "AdamW fused": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.9),
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.01, initial_accumulator_value=0.1),
    "Adadelta": functools.partial(torch.optim.Adadelta, lr=1.0),
    "NAdam": functools.partial(torch.optim.NAdam, lr=0.01),
    "RAdam": functools.partial(torch.optim.RAdam, lr=0.01),
    "Rprop": functools.partial(torch.optim.Rprop, lr=0.01),
}


class LayerwiseSGD(Optimizer):
    """Like LARS: the step of each tensor is scaled by the norm of the tensor."""

    def __init__(self, params, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.norm() * p.grad)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))


def trained_alone(factory, steps: int) -> torch.Tensor:
    alone = model()
    optimizer = factory(list(alone.parameters()))
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for p in alone.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in alone.parameters()])


def trained_in_rows(factory, steps: int, learners: int = 3) -> LearnerGroup:
    group = LearnerGroup(model(), factory, learners=learners, device=CPU)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        gradient = torch.cat([torch.randn(p.shape, generator=generator).flatten() for p in model().parameters()])
        group.matrix.gradients[:, : len(gradient)] = gradient
        group.optimizer.step()
    return group


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_optimizer_on_rows_equals_itself_on_parameters_bit_for_bit(name: str) -> None:
    factory = ELEMENTWISE[name]
    group = trained_in_rows(factory, steps=5)
    alone = trained_alone(factory, steps=5)
    assert group.optimizer.elementwise
    # The fused kernels round the last few elements of a tensor, those that fill no vector register, differently.
    tolerance = 1e-6 if "fused" in name else 0.0
    for row in group.matrix.weights:
        torch.testing.assert_close(row[: len(alone)], alone, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "factory",
    [functools.partial(LayerwiseSGD, lr=0.1), functools.partial(torch.optim.Adafactor, lr=0.1)],
    ids=["layerwise", "Adafactor"],
)
def test_an_optimizer_that_is_not_elementwise_gets_one_tensor_per_parameter(factory) -> None:
    group = trained_in_rows(factory, steps=5)
    alone = trained_alone(factory, steps=5)
    assert not group.optimizer.elementwise
    for row in group.matrix.weights:
        torch.testing.assert_close(row[: len(alone)], alone, rtol=1e-6, atol=1e-7)


def test_an_optimizer_that_is_not_elementwise_is_found_out_at_learning_rate_zero() -> None:
    group = LearnerGroup(model(), functools.partial(LayerwiseSGD, lr=0.0), learners=1, device=CPU)
    assert not group.optimizer.elementwise


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (torch.optim.LBFGS, "LBFGS needs a closure"),
        (functools.partial(torch.optim.SparseAdam, lr=0.1), "SparseAdam fails on this model's parameters"),
        (functools.partial(torch.optim.SGD, lr=-1.0), "Invalid learning rate: -1.0"),
        (functools.partial(torch.optim.Muon, lr=0.1), "cannot be made for this model"),
        (lambda parameters: None, "it returned NoneType"),
        (torch.optim.SGD([torch.zeros(1)], lr=0.1), "got a SGD object"),
    ],
    ids=["LBFGS", "SparseAdam", "negative", "Muon with vectors", "none", "object"],
)
def test_an_optimizer_that_cannot_work_is_refused(factory, message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        LearnerGroup(model(), factory, learners=2, device=CPU)


class NormedSGD(Optimizer):
    """Clips the norm of the whole gradient, as timm's Lamb and Adan do."""

    def __init__(self, params, lr: float, noise: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "noise": noise})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            norm = 1.0 if group["noise"] else torch.stack([p.grad.norm() for p in trained]).norm().clamp(min=1.0)
            for p in trained:
                p.sub_(group["lr"] * (p.grad / norm + group["noise"] * torch.randn_like(p)))


def test_a_learning_rate_that_is_a_tensor_is_copied_out_of_every_autograd_graph() -> None:
    given = torch.tensor(0.1, requires_grad=True)
    made = make_optimizer(functools.partial(torch.optim.SGD, lr=given), nn.Linear(2, 2)).param_groups[0]["lr"]
    assert made is not given
    assert not made.requires_grad
    assert made == given


def test_an_optimizer_whose_steps_depend_on_all_gradients_is_for_one_learner() -> None:
    factory = functools.partial(NormedSGD, lr=0.1)
    LearnerGroup(nn.Linear(3, 2), factory, learners=1, device=CPU)
    with pytest.raises(OptimizerError, match=r"NormedSGD .* use learners=1"):
        LearnerGroup(nn.Linear(3, 2), factory, learners=2, device=CPU)
    for each in (functools.partial(factory, noise=0.1), LayerwiseSGD, torch.optim.Adafactor):
        LearnerGroup(nn.Linear(3, 2), functools.partial(each, lr=0.1), learners=2, device=CPU)


def test_an_optimizer_for_one_learner_gets_one_where_their_number_is_open() -> None:
    factory = functools.partial(NormedSGD, lr=0.1)
    loss = nn.functional.cross_entropy
    assert Replicas(nn.Linear(3, 2), loss, optimizer=factory, device="cpu").learners == 1


def test_muon_trains_a_model_of_matrices() -> None:
    torch.manual_seed(0)
    matrices = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 3, bias=False))
    group = LearnerGroup(matrices, functools.partial(torch.optim.Muon, lr=0.1), learners=2, device=CPU)
    before = group.matrix.weights.clone()
    group.matrix.gradients.normal_(generator=torch.Generator().manual_seed(0))
    group.optimizer.step()
    assert not group.optimizer.elementwise
    assert not torch.equal(group.matrix.weights, before)


def test_groups_keep_their_own_settings() -> None:
    template = model()

    def factory(parameters) -> Optimizer:
        parameters = list(parameters)
        frozen, moving = [p for p in parameters if p.dim() == 1], [p for p in parameters if p.dim() == 2]
        return torch.optim.SGD([{"params": frozen, "lr": 0.0}, {"params": moving}], lr=0.5)

    group = LearnerGroup(template, factory, learners=2, device=CPU)
    group.matrix.gradients.fill_(1.0)
    group.optimizer.step()
    views = group.layout.views(group.matrix.weights[1])
    for name, parameter in template.named_parameters():
        expected = parameter if parameter.dim() == 1 else parameter - 0.5
        assert torch.equal(views[name], expected)


def test_a_learner_that_sits_out_keeps_weights_and_step_count() -> None:
    group = LearnerGroup(model(), ELEMENTWISE["Adam"], learners=2, device=CPU)
    before = group.matrix.weights.clone()
    group.matrix.gradients.fill_(1.0)
    group.optimizer.step([True, False])
    group.optimizer.step()
    states = [group.optimizer.optimizer.state[p] for p in group.optimizer.optimizer.param_groups[0]["params"]]
    assert [float(state["step"]) for state in states] == [2.0, 1.0]
    assert not torch.equal(group.matrix.weights[1], before[1])


@pytest.mark.parametrize("name", ["SGD with momentum", "SGD fused", "Adagrad", "AdamW"])
def test_a_new_learner_starts_with_fresh_state_and_the_others_keep_theirs(name: str) -> None:
    group = trained_in_rows(ELEMENTWISE[name], steps=3, learners=2)
    fresh = trained_in_rows(ELEMENTWISE[name], steps=0, learners=1)
    group.add()
    group.matrix.gradients.fill_(0.5)
    fresh.matrix.gradients.fill_(0.5)
    fresh.matrix.weights.copy_(group.matrix.weights[2:])
    group.optimizer.step()
    fresh.optimizer.step()
    assert torch.equal(group.matrix.weights[2], fresh.matrix.weights[0])


def test_a_removed_learner_takes_its_state_with_it() -> None:
    group = trained_in_rows(ELEMENTWISE["Adam"], steps=2, learners=3)
    group.remove()
    optimizer = group.optimizer.optimizer
    assert len(optimizer.param_groups[0]["params"]) == 2
    assert len(optimizer.state) == 2


def test_a_learner_that_joins_a_fused_sgd_steps_as_it_would_alone() -> None:
    """PyTorch's fused SGD makes momentum for all tensors of a call, or for none."""
    rows = []
    for fused in (True, False):
        group = LearnerGroup(
            model(), functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=fused), learners=1, device=CPU
        )
        for learners in (1, 2, 2, 3):
            while len(group) < learners:
                group.add()
            generator = torch.Generator().manual_seed(learners)
            group.matrix.gradients.copy_(torch.randn(group.matrix.gradients.shape, generator=generator))
            group.optimizer.step()
        rows.append(group.matrix.weights.clone())
    torch.testing.assert_close(*rows)


def own_parameters(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([OWN], lr=1.0)


OWN = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (functools.partial(torch.optim.SGD, lr=0.1), 0),
        (functools.partial(torch.optim.SGD, momentum=0.9), 1),
        (torch.optim.AdamW, 2),
        (functools.partial(torch.optim.Adam, amsgrad=True), 3),
        (torch.optim.Muon, 1),  # which refuses vectors
        (lambda parameters: 3, 0),
        (own_parameters, 0),
    ],
)
def test_state_tensors_of_optimizers_are_counted(optimizer: Any, expected: int) -> None:
    assert num_state_tensors(optimizer) == expected


def test_parameters_of_the_users_own_are_left_alone() -> None:
    OWN.grad = torch.ones(3)
    num_state_tensors(own_parameters)
    assert OWN.tolist() == [1, 1, 1]
