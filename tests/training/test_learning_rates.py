"""Warm-up and cosine beside the loop that computes them, and the range test."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.errors import BowError, SettingError
from tests.training.blueprints import Data, PowerCut, StopAfter, Train, assert_equal_models, dealt

SGD = functools.partial(torch.optim.SGD, lr=0.4, momentum=0.9)


def expected_rates(rounds: int, warmup: int, end: float) -> list[float]:
    rising = [0.4 * (t + 1) / warmup for t in range(warmup)]
    falling = [math.cos(math.pi * t / (rounds - warmup)) for t in range(rounds - warmup)]
    return rising + [0.4 * (end + (1 - end) * (1 + value) / 2) for value in falling]


def plain(model: nn.Module, data: Data, rates: list[float]) -> nn.Module:
    optimizer = SGD(model.parameters())
    for rate, (inputs, labels) in zip(rates, dealt(data, 4, epochs=2), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("warmup", "rounds"), [(0.25, 6), (5, 5), (0, 0)])
def test_warmup_and_cosine_are_those_of_the_plain_loop(
    train: Train, model: nn.Module, data: Data, warmup: float, rounds: int
) -> None:
    scheduler = bow.WarmupCosine(warmup=warmup, end=0.1)
    result = train(model, data, optimizer=SGD, scheduler=scheduler, learners=1, epochs=2)
    rates = expected_rates(24, rounds, 0.1)
    expected = plain(model, data, rates)
    for own, other in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)
    assert result.history[-1]["lr"] == pytest.approx(rates[-1], rel=0.2)


def test_a_resumed_training_keeps_its_curve(train: Train, model: nn.Module, data: Data) -> None:
    settings = {"optimizer": SGD, "scheduler": bow.WarmupCosine(), "checkpoint_every": 3, "epochs": 2}
    whole = train(model, data, run_dir=None, **settings)
    with pytest.raises(PowerCut):
        train(model, data, callbacks=[StopAfter(7, PowerCut)], **settings)
    result = train(model, data, resume="auto", **settings)
    assert_equal_models(result.model, whole.model)


def test_a_curve_for_fewer_rounds_than_there_are_now_is_told(train: Train, model: nn.Module, data: Data) -> None:
    settings = {"optimizer": SGD, "scheduler": bow.WarmupCosine(), "checkpoint_every": 3}
    train(model, data, **settings)
    with pytest.warns(UserWarning, match="started with rounds of the scheduler=6, got rounds of the scheduler=12; it"):
        train(model, data, resume="auto", epochs=2, **settings)


def test_a_scheduler_of_ones_own_is_told_the_rounds(train: Train, model: nn.Module, data: Data) -> None:
    told: list[int] = []

    def make(optimizer: torch.optim.Optimizer, rounds: int) -> torch.optim.lr_scheduler.OneCycleLR:
        told.append(rounds)
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=rounds)

    train(model, data, scheduler=bow.PerRound(make), epochs=2)
    assert set(told) == {12}
    told.clear()
    train(model, data, scheduler=bow.PerRound(functools.partial(make, rounds=40)), epochs=2, run_dir=None)
    assert set(told) == {40}


def test_members_have_the_curve_of_a_training_alone(train: Train, model: nn.Module, data: Data) -> None:
    run = bow.Run(train(model, data).run_dir / "sweep", progress=False)
    make = functools.partial(nn.Linear, 5, 3)
    settings = {"optimizer": SGD, "scheduler": bow.WarmupCosine(0.2), "epochs": 2}
    swept = bow.sweep(make, data, cross_entropy, variants=bow.grid(seed=[0, 1]), engine="eager", run=run, **settings)
    torch.set_num_threads(1)
    alone = train(make, data, learners=1, batch_size=16, seed=1, run_dir=None, **settings)
    assert swept[1].model is not None
    assert_equal_models(swept[1].model, alone.model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"warmup": -1}, "warmup must be .*at least 0, got -1"), ({"end": 2}, "end must be .*got 2")],
)
def test_curves_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        bow.WarmupCosine(**settings)


def test_a_range_test_is_a_loop_whose_rate_grows_and_finds_a_rate_that_trains(model: nn.Module, data: Data) -> None:
    before = model.weight.detach().clone()  # type: ignore[union-attr, operator]
    seen = bow.lr_range_test(model, data, cross_entropy, optimizer=SGD, batch_size=8, rounds=60, least=1e-4, most=1000)
    assert torch.equal(model.weight, before)  # type: ignore[arg-type]
    assert seen.rates[0] == pytest.approx(1e-4)
    assert seen.rates[1] / seen.rates[0] == pytest.approx(10 ** (7 / 59))
    assert 1e-3 < seen.best < 30
    twin = nn.Linear(5, 3)
    twin.load_state_dict(model.state_dict())
    optimizer, losses = SGD(twin.parameters()), []
    for rate, (inputs, labels) in zip(seen.rates[:10], dealt(data, 8, steps=60), strict=False):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = cross_entropy(twin(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert seen.losses[:10] == pytest.approx(losses, rel=1e-6)


def test_a_range_test_ends_where_the_loss_is_lost(model: nn.Module, data: Data) -> None:
    seen = bow.lr_range_test(model, data, cross_entropy, rounds=50, least=1.0, most=1e30)
    assert len(seen.rates) < 50
    assert not seen.losses[-1] < 4 * min(seen.losses)


def test_a_loss_that_never_falls_leaves_the_smallest_rate(model: nn.Module, data: Data) -> None:
    calls: list[int] = []

    def step(model: nn.Module, batch: Data) -> Tensor:
        calls.append(1)
        return 0 * model(batch[0]).sum() + 2 - 0.5 ** len(calls)

    assert bow.lr_range_test(model, data, step=step, rounds=30, least=0.5).best == 0.5


def test_a_group_with_rate_0_keeps_it(model: nn.Module, data: Data) -> None:
    made: list[torch.optim.Optimizer] = []

    def make(named: Any) -> torch.optim.Optimizer:
        weight, bias = (parameter for _, parameter in named)
        made.append(torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": 0.0}], lr=0.2))
        return made[-1]

    bow.lr_range_test(model, data, cross_entropy, optimizer=make, rounds=5, most=0.3)
    rates = [tuple(group["lr"] for group in each.param_groups) for each in made]
    assert any(rate == pytest.approx(0.3) for rate, _ in rates)
    assert {rate for _, rate in rates} == {0.0}


@pytest.mark.filterwarnings("ignore::UserWarning")  # learners that start again say so
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 2}, "rounds must be .*at least 3, got 2"),
        ({"least": 1, "most": 1}, "least must be smaller than most"),
        ({"epochs": 3}, "lr_range_test has no epochs=; it takes rounds, least, most, step, "),
        ({"model": nn.Linear(4, 3)}, "the model or its loss fails on the first batch"),
        ({"loss": lambda outputs, targets: outputs.sum() * math.nan}, "the loss is nan"),
    ],
)
def test_range_tests_that_cannot_be_are_refused(
    model: nn.Module, data: Data, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BowError, match=message):
        bow.lr_range_test(**{"model": model, "data": data, "loss": cross_entropy, **settings})
