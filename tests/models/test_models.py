"""One table for what every model must do."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from bow.models import (
    MLP,
    AlexNet,
    BottleneckResNet,
    GoogLeNet,
    LeNet,
    LogisticRegression,
    LSTMLanguageModel,
    PathNet,
    PhasedLSTM,
    ResNet,
    RNNLanguageModel,
    Transformer,
    sequence_cross_entropy,
)

LEARNERS, BATCH, CLASSES = 3, 4, 5


@dataclass
class Case:
    """A model, one sample's input shape, and what it predicts."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    parameters: int

    @property
    def tokens(self) -> bool:
        return len(self.shape) == 1

    def inputs(self, *leading: int) -> Tensor:
        if self.tokens:
            return torch.randint(CLASSES, (*leading, *self.shape))
        return torch.randn(*leading, *self.shape, dtype=torch.float64)

    def targets(self, *leading: int) -> Tensor:
        return torch.randint(CLASSES, (*leading, *(self.shape if self.tokens else ())))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (sequence_cross_entropy if self.tokens else F.cross_entropy)(outputs, targets)


CASES = {
    "logistic regression": Case(lambda: LogisticRegression(64, CLASSES), (1, 8, 8), 64 * 5 + 5),
    "MLP": Case(lambda: MLP(64, CLASSES, hidden=(9, 7)), (1, 8, 8), 64 * 9 + 9 + 9 * 7 + 7 + 7 * 5 + 5),
    "LeNet": Case(lambda: LeNet(CLASSES, channels=2), (2, 28, 28), 429_075),
    "small LeNet": Case(lambda: LeNet(CLASSES, size=8), (1, 8, 8), 128_575),
    "ResNet": Case(lambda: ResNet(8, CLASSES, width=4), (3, 8, 8), 4_921),
    "bottleneck ResNet": Case(lambda: BottleneckResNet(50, CLASSES, width=2), (3, 8, 8), 24_935),
    "AlexNet": Case(lambda: AlexNet(CLASSES, width=0.05), (3, 63, 63), 146_756),
    "GoogLeNet": Case(lambda: GoogLeNet(CLASSES, width=0.05), (3, 16, 16), 15_254),
    "PathNet": Case(lambda: PathNet(CLASSES, size=9, filters=4, modules=2), (3, 9, 9), 841),
    "LSTM": Case(lambda: LSTMLanguageModel(CLASSES, 6, 8), (7,), 1_163),
    "unrolled LSTM": Case(lambda: RNNLanguageModel(CLASSES, 16), (7,), 4_517),
    "phased LSTM": Case(lambda: PhasedLSTM(CLASSES, 16, periods=(1.0, 8.0), open_ratio=0.5), (7,), 4_613),
    "transformer": Case(lambda: Transformer(CLASSES, width=8, heads=2, context=9), (7,), 1_917),
}

each_model = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@each_model
def test_outputs_are_logits_of_every_class(case: Case) -> None:
    outputs = case.build().double()(case.inputs(BATCH))
    assert outputs.shape == (*case.targets(BATCH).shape, CLASSES)


@each_model
def test_number_of_parameters(case: Case) -> None:
    assert sum(parameter.numel() for parameter in case.build().parameters()) == case.parameters


@each_model
def test_learners_at_once_equal_learners_one_by_one(case: Case) -> None:
    torch.manual_seed(0)
    models = [case.build().double() for _ in range(LEARNERS)]
    inputs, targets = case.inputs(LEARNERS, BATCH), case.targets(LEARNERS, BATCH)
    parameters, buffers = stack_module_state(models)
    buffers = {name: buffer.clone() for name, buffer in buffers.items()}

    def loss_of(parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return case.loss(functional_call(models[0], (parameters, buffers), (inputs,)), targets)

    gradients, losses = vmap(grad_and_value(loss_of))(parameters, buffers, inputs, targets)
    for learner, model in enumerate(models):
        loss = case.loss(model(inputs[learner]), targets[learner])
        loss.backward()
        torch.testing.assert_close(losses[learner], loss, rtol=1e-12, atol=1e-12)
        for name, parameter in model.named_parameters():
            # Sums in another order: rounding is relative to the largest of what is summed, and deep networks add to it.
            atol = 1e-10 * float(parameter.grad.abs().max())
            torch.testing.assert_close(gradients[name][learner], parameter.grad, rtol=1e-10, atol=atol)


@each_model
def test_every_parameter_gets_a_gradient(case: Case) -> None:
    model = case.build().double()
    case.loss(model(case.inputs(BATCH)), case.targets(BATCH)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@each_model
def test_a_batch_can_be_learned_by_heart(case: Case) -> None:
    torch.manual_seed(0)
    model, inputs, targets = case.build().double(), case.inputs(BATCH), case.targets(BATCH)
    # At a rate of 0.02 AlexNet diverges on some processors.
    check_learning(model, lambda: case.loss(model(inputs), targets), rate=0.005, steps=100, part=0.5)


def check_learning(model: nn.Module, loss_of: Callable[[], Tensor], rate: float, steps: int, part: float) -> None:
    """Within so many steps the loss falls to a part of what it is at first."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if losses[-1] < part * losses[0]:
            return
    pytest.fail(f"the loss fell from {losses[0]} to {losses[-1]} only")


LANGUAGE_MODELS = (LSTMLanguageModel, Transformer)


@pytest.mark.parametrize("build", LANGUAGE_MODELS)
def test_predictions_do_not_see_the_future(build: Callable[..., nn.Module]) -> None:
    model = build(5)
    tokens = torch.tensor([[0, 1, 2, 3]])
    changed = torch.tensor([[0, 1, 4, 4]])
    assert torch.allclose(model(tokens)[:, :2], model(changed)[:, :2])
    assert not torch.allclose(model(tokens)[:, 2:], model(changed)[:, 2:])


@pytest.mark.parametrize("build", LANGUAGE_MODELS)
def test_dropout_acts_in_training_only(build: Callable[..., nn.Module]) -> None:
    model, tokens = build(5, dropout=0.5), torch.randint(5, (2, 6))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
