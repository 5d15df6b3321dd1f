"""One learner and the default alpha: bow is plain PyTorch, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import bow
from bow.data import batch_of, open_stream
from tests.training.blueprints import Data, assert_equal_models

SAMPLES, SIZE, CLASSES, BATCH, EPOCHS = 90, 6, 3, 8, 3


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * (SIZE // 2) ** 2, 12),
        nn.BatchNorm1d(12),
        nn.Tanh(),
        nn.Linear(12, CLASSES),
    )


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.05),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.003, momentum=0.5),
}


def images(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 1, SIZE, SIZE, generator=generator, dtype=torch.float64)
    labels = (inputs.mean(dim=(1, 2, 3)) * 10).round().long() % CLASSES
    return inputs.to(dtype), labels


def scheduler(optimizer: torch.optim.Optimizer) -> StepLR:
    return StepLR(optimizer, step_size=1, gamma=0.4)  # every epoch a drop that SMA restarts after


def plain_pytorch(model: nn.Module, make_optimizer: Callable[..., torch.optim.Optimizer], data: Data) -> nn.Module:
    """What a user would write, with the order of the samples taken from bow."""
    optimizer = make_optimizer(model.parameters())
    schedule = scheduler(optimizer)
    epoch = 0
    for (inputs, labels), epochs in dealt(data):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if epochs > epoch:
            epoch = epochs
            schedule.step()
    return model


def dealt(data: Data) -> Iterable[tuple[tuple[Tensor, Tensor], int]]:
    stream = open_stream(data, batch_size=BATCH, epochs=EPOCHS, seed=7)
    while (deal := stream.deal(1)) is not None:
        inputs, labels = batch_of(deal.batches, 0)
        yield (inputs, labels), deal.epochs


@pytest.mark.sample(3)
@pytest.mark.quick(5)
@pytest.mark.usefixtures("_no_report")
@pytest.mark.parametrize("sync", [bow.SMA, bow.EASGD, bow.SSGD, bow.Independent])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_learner_is_plain_pytorch_bit_for_bit(
    optimizer: str, dtype: torch.dtype, sync: Callable[[], bow.sync.Synchroniser], tmp_path: Path
) -> None:
    data = images(dtype)
    torch.manual_seed(0)
    start = conv_net().to(dtype)
    result = bow.train(
        start,
        data,
        nn.functional.cross_entropy,
        optimizer=OPTIMIZERS[optimizer],
        scheduler=scheduler,
        batch_size=BATCH,
        epochs=EPOCHS,
        learners=1,
        engine="eager",
        sync=sync(),
        devices="cpu",
        validation=data,
        run=bow.Run(tmp_path / "run", progress=False),
        seed=7,
    )
    torch.manual_seed(0)
    expected = plain_pytorch(conv_net().to(dtype), OPTIMIZERS[optimizer], data)
    assert_equal_models(result.model, expected)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_learner_in_a_loop_of_ones_own_is_plain_pytorch_bit_for_bit(optimizer: str, dtype: torch.dtype) -> None:
    data = images(dtype)
    torch.manual_seed(0)
    plain = conv_net().to(dtype)
    replicas = bow.Replicas(
        plain,
        nn.functional.cross_entropy,
        optimizer=OPTIMIZERS[optimizer],
        learners=1,
        engine="eager",
        sync=bow.SMA(every=3),
        device="cpu",
    )
    plain_optimizer = OPTIMIZERS[optimizer](plain.parameters())
    for (inputs, labels), _ in dealt(data):
        (loss,) = replicas.round([(inputs, labels)])
        plain_optimizer.zero_grad()
        expected_loss = nn.functional.cross_entropy(plain(inputs), labels)
        expected_loss.backward()
        plain_optimizer.step()
        assert torch.equal(loss, expected_loss.detach())
        assert_equal_models(replicas.central, plain)
