"""Learning rates: a scheduler with warm-up and cosine decay, and a learning-rate range test."""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bow.engines import Loss
from bow.errors import SettingError
from bow.training.config import PerRound, SchedulerFactory, TrainConfig
from bow.training.train import prepare
from bow.values import number, whole

WORSE = 4.0  # a loss of this multiple of the best one ends a range test
SMOOTHING = 0.8  # weight of the previous value in the smoothed loss


@dataclass(frozen=True)
class WarmupCosine(PerRound):
    """Linear warm-up over the first rounds, then cosine decay over the remaining ones.

    It is stepped after every round; bow supplies the number of rounds.

    Args:
        warmup: rounds of linear increase, the last of them at the optimizer's own rate; below 1, a share of all.
        end: the rate after the last round, as a share of the optimizer's own.

    Raises:
        SettingError: an invalid value.

    Example:
        >>> WarmupCosine(warmup=100)
        WarmupCosine(warmup=100, end=0.0)

    References:
        Loshchilov, Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017.
        Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017 (warm-up).
    """

    factory: SchedulerFactory = field(init=False, repr=False, compare=False)
    warmup: float = 0.05
    end: float = 0.0

    def __post_init__(self) -> None:
        number("warmup", self.warmup, least=0)
        number("end", self.end, least=0, most=1)
        object.__setattr__(self, "factory", functools.partial(_warmup_cosine, self.warmup, self.end))


@dataclass
class _Shape:
    """The learning-rate factor by round; an object, so that checkpoints contain its fields."""

    warmup: int
    rounds: int
    end: float

    def __call__(self, index: int) -> float:
        if index < self.warmup:
            return (index + 1) / self.warmup
        done = min((index - self.warmup) / max(1, self.rounds - self.warmup), 1.0)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2


def _warmup_cosine(warmup: float, end: float, optimizer: Optimizer, *, rounds: int) -> LambdaLR:
    return LambdaLR(optimizer, _Shape(round(warmup * rounds) if warmup < 1 else int(warmup), rounds, end))


@dataclass(frozen=True)
class RangeTest:
    """Result of `lr_range_test`.

    Attributes:
        rates: the learning rate of each round.
        losses: the mean loss over the learners in each round, before the step.
        best: the rate at which the smoothed loss fell most steeply: a starting point.
    """

    rates: list[float] = field(repr=False)
    losses: list[float] = field(repr=False)
    best: float


# Settings of `bow.train` that a range test accepts.
TESTED = ("step", "optimizer", "batch_size", "learners", "sync", "engine", "clip_norm", "seed")


def lr_range_test(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    loss: Loss | None = None,
    *,
    rounds: int = 100,
    least: float = 1e-6,
    most: float = 10.0,
    **settings: Any,
) -> RangeTest:
    """Train for some rounds with a growing learning rate, and find where the loss falls fastest.

    The rate grows by the same factor every round, from `least` to `most`, and the test ends early if the loss is not
    finite or above four times the best. The given model is not changed. Parameter groups keep their ratios.

    Args:
        model: as for `bow.train`.
        data: as for `bow.train`.
        loss: as for `bow.train`.
        rounds: number of rates to try.
        least: the first rate.
        most: the last rate.
        **settings: `step`, `optimizer` (whose learning rate does not matter), `batch_size`, `learners` (1; more of them
            tolerate, and need, a higher rate), `sync`, `engine` (`"eager"`), `clip_norm` and `seed` as for `bow.train`.

    Raises:
        BowError: an invalid argument; the message names the value and the remedy.

    Example:
        >>> import torch
        >>> inputs = torch.randn(64, 8, generator=torch.manual_seed(0))
        >>> seen = lr_range_test(nn.Linear(8, 1), (inputs, inputs[:, :1]), nn.functional.mse_loss, rounds=20)
        >>> 1e-6 < seen.best < 10
        True

    References:
        Smith, Cyclical Learning Rates for Training Neural Networks, 2017.
    """
    rounds = whole("rounds", rounds, least=3)
    first, last = number("least", least, above=0), number("most", most, above=0)
    if first >= last:
        raise SettingError(f"least must be smaller than most, got {least:g} and {most:g}; exchange them")
    if other := next((name for name in settings if name not in TESTED), None):
        raise SettingError(f"lr_range_test has no {other}=; it takes rounds, least, most, {', '.join(TESTED)}")
    given: dict[str, Any] = {"learners": 1, "engine": "eager", **settings}
    config = TrainConfig(model=model, data=data, loss=loss, steps=rounds, on_nan="continue", **given)
    prepared = prepare(config, lambda count: None)
    request = prepared.request
    learners = request.rule if request.learners == "auto" else request.learners
    replicas = request.replicas.build(request.engine, learners, compile=request.compile)
    groups = replicas.optimizer.param_groups
    largest = max(float(group["lr"]) for group in groups)
    shares = [float(group["lr"]) / largest if largest else 1.0 for group in groups]
    rates: list[float] = []
    losses: list[float] = []
    try:
        for index in range(rounds):
            if (deal := prepared.opened.stream.deal(learners)) is None:
                break
            rate = first * (last / first) ** (index / (rounds - 1))
            for group, share in zip(groups, shares, strict=True):
                group["lr"] = rate * share
            value = float(replicas.round(deal.batches).nanmean())
            rates.append(rate)
            losses.append(value)
            if not math.isfinite(value) or value > WORSE * max(min(losses), 1e-12):
                break
    finally:
        replicas.close()
    if not math.isfinite(losses[0]):
        raise SettingError(f"the loss is {losses[0]} before the first step, at any learning rate; correct data or loss")
    return RangeTest(rates, losses, _steepest(rates, losses))


def _steepest(rates: list[float], losses: list[float]) -> float:
    """Return the rate at which the smoothed loss falls fastest; the smallest rate if it never does."""
    smoothed: list[float] = []
    for value in losses:
        before = smoothed[-1] if smoothed else value
        smoothed.append(SMOOTHING * before + (1 - SMOOTHING) * value if math.isfinite(value) else math.inf)
    falls = [after - before for before, after in itertools.pairwise(smoothed)]
    fall, at = min(zip(falls, itertools.count(), strict=False), default=(0.0, 0))
    return rates[at] if fall < 0 else rates[0]
