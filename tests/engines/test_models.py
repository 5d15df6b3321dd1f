"""The networks of the papers in every engine: SGD and AdamW, 1 to 4 learners, equal to 1e-10."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bow.models import MLP, LeNet, LogisticRegression, LSTMLanguageModel, ResNet, Transformer, sequence_cross_entropy
from bow.models.transformer import TransformerBlock
from tests.engines.pairs import FAKE, OPTIMIZERS, OTHERS, TOLERANCE, Pair

# The compiler, when it is first imported, uses what torch itself has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")

ROUNDS, NIGHTLY_ROUNDS = 9, 20
"""The learning rate falls behind the seventh round, and again behind the fourteenth."""

TELLING = {("momentum", 4), ("adamw", 2)}
"""Of every engine, and on the fake device, which looks at every access, the second alone; several learners of smaller
networks are in `test_agreement.py`."""

CASES = [
    pytest.param(
        engine,
        optimizer,
        learners,
        marks=() if (optimizer, learners) in TELLING else pytest.mark.nightly,
    )
    for engine in OTHERS
    for optimizer in OPTIMIZERS
    for learners in ((1, 2) if engine.endswith(FAKE) else (1, 2, 4))
]
CLASSES, VOCABULARY, LENGTH = 3, 7, 4

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Network:
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def pair(self, engine: str, optimizer: str, learners: int) -> Pair:
        return Pair(engine, self.build, self.loss, optimizer=optimizer, learners=learners)

    def batches(self, count: int, seed: int) -> list[Batch]:
        generator = torch.Generator().manual_seed(seed)
        return [self.batch(generator) for _ in range(count)]


def images(generator: torch.Generator, samples: int, channels: int, size: int) -> Batch:
    inputs = torch.randn(samples, channels, size, size, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (samples,), generator=generator)


def sentences(generator: torch.Generator) -> Batch:
    first, second = torch.randint(VOCABULARY, (2, 2, LENGTH), generator=generator)
    return first, second


def transformer() -> nn.Module:
    model = Transformer(VOCABULARY, width=8, heads=2, layers=2, context=LENGTH)
    for block in model.blocks:
        # Softmax takes no notice of a key's bias: its gradient is rounding noise around 0, which AdamW divides by eps.
        assert isinstance(block, TransformerBlock)
        block.qkv = nn.Linear(8, 3 * 8, bias=False)
    return model


NETWORKS = {
    "logistic-regression": Network(
        functools.partial(LogisticRegression, 36, CLASSES), functools.partial(images, samples=4, channels=1, size=6)
    ),
    "mlp": Network(
        functools.partial(MLP, 36, CLASSES, hidden=(8,)), functools.partial(images, samples=4, channels=1, size=6)
    ),
    "lenet": Network(
        functools.partial(LeNet, CLASSES, size=8), functools.partial(images, samples=2, channels=1, size=8)
    ),
    "resnet8": Network(
        functools.partial(ResNet, 8, CLASSES, width=4), functools.partial(images, samples=3, channels=3, size=8)
    ),
    "lstm": Network(
        functools.partial(LSTMLanguageModel, VOCABULARY, embedding=5, hidden=6, layers=2),
        sentences,
        sequence_cross_entropy,
    ),
    "transformer": Network(transformer, sentences, sequence_cross_entropy),
}


@pytest.mark.sample(7)
@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize(("engine", "optimizer", "learners"), CASES)
@pytest.mark.parametrize("name", NETWORKS)
def test_engines_train_the_papers_networks_as_eager_does(
    engine: str, optimizer: str, learners: int, name: str, request: pytest.FixtureRequest
) -> None:
    network = NETWORKS[name]
    with network.pair(engine, optimizer, learners) as pair:
        start = pair.trainings[1].z.clone()
        for t in range(NIGHTLY_ROUNDS if request.config.getoption("--nightly") else ROUNDS):
            pair.round(network.batches(learners, seed=t))
        assert pair.engine == engine  # it did not fall back
        assert (pair.trainings[1].z - start).abs().max() > 0.01


def test_recurrent_layers_that_torchs_compiler_refuses_run_uncompiled_in_fused_which_is_said() -> None:
    network = NETWORKS["lstm"]
    with network.pair("fused", "momentum", learners=2) as pair:
        with pytest.warns(UserWarning, match=r"does not work for this model .* running fused \(not compiled\)"):
            pair.round(network.batches(2, seed=0))
        pair.round(network.batches(2, seed=1))
        assert pair.engine == "fused (not compiled)"


def moved_by_cudnn(layer: nn.RNNBase) -> None:
    """What `flatten_parameters` does on a GPU."""
    flat = torch.cat([weight.detach().flatten() for weight in layer._flat_weights])
    begin = 0
    for weight in layer._flat_weights:
        weight.data = flat[begin : begin + weight.numel()].view_as(weight)
        begin += weight.numel()


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("engine", ["eager", *OTHERS])
def test_recurrent_layers_leave_their_weights_in_the_rows(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = functools.partial(LSTMLanguageModel, VOCABULARY, embedding=5, hidden=6, layers=1)
    network, made = dataclasses.replace(NETWORKS["lstm"], build=build), []
    for moves in (False, True):
        if moves:
            monkeypatch.setattr(nn.RNNBase, "flatten_parameters", moved_by_cudnn)
        with network.pair(engine, "momentum", learners=2) as pair:
            trained = pair.trainings[1]
            for t in range(3):
                trained.round(network.batches(2, seed=t))
            trained.learner(0)(network.batches(1, seed=3)[0][0])
            row = trained.W.untyped_storage().data_ptr()
            assert {each.untyped_storage().data_ptr() for each in trained.learner(0).parameters()} == {row}
            assert pair.engine == engine
            made.append(trained.export())
    plain, own = (each.state_dict() for each in made)
    torch.testing.assert_close(own, plain, rtol=0, atol=TOLERANCE)
    assert not any("flatten_parameters" in vars(module) for module in made[1].modules())
