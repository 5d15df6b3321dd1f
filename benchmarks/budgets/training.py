"""What is trained in `benchmarks.budgets`: the tasks, who takes part, and one training."""

import functools
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import current_process
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bow
from bow.data import digits, fashion_mnist, open_stream, text
from bow.engines import EngineName, Loss
from bow.errors import DivergenceError
from bow.models import LeNet, LSTMLanguageModel, ResNet, Transformer, sequence_cross_entropy
from bow.sync import DiLoCo, LocalSGD, Synchroniser
from bow.training.evaluation import MovingAverage

MOMENTUM = 0.9
HORIZON = 0.1  # of the moving average, as a share of all rounds
WARM_UP = 0.1  # share of the rounds
SWEEP_SEED = 100
LAST = 0.8  # share of the rounds without averaging, where it comes last

Samples = tuple[Tensor, Tensor]


class Parts(NamedTuple):
    """The samples of a task."""

    train: Samples
    validation: Samples  # to choose learning rates by
    test: Samples  # reported


@dataclass(frozen=True)
class Task:
    """A model, its data, and how long it is trained."""

    title: str
    about: str
    model: Callable[[], nn.Module]
    parts: Callable[[], Parts]
    budgets: tuple[int, ...]  # samples
    loss: Loss = nn.functional.cross_entropy
    throughput: str | None = "lenet"  # the model of `benchmarks.engines` whose throughput is taken; None: no such one
    ranks: int = 3  # of the contestants that take part


def _digits() -> Parts:
    splits = digits()
    (inputs, labels), kept = splits.train, 1000
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    inputs, labels = inputs[order], labels[order]
    return Parts((inputs[:kept], labels[:kept]), (inputs[kept:], labels[kept:]), splits.validation)


def _fashion(noise: float = 0.0, pixels: int = 7) -> Parts:
    splits = fashion_mnist()

    def part(samples: Samples, start: int, stop: int) -> Samples:
        return nn.functional.adaptive_avg_pool2d(samples[0][start:stop], pixels), samples[1][start:stop].long().clone()

    train = part(splits.train, 0, 5_000)
    draw = torch.Generator().manual_seed(0)
    is_wrong = torch.rand(len(train[1]), generator=draw) < noise
    shift = torch.randint(1, 10, (len(train[1]),), generator=draw)
    train[1][is_wrong] = (train[1] + shift)[is_wrong] % 10
    return Parts(train, part(splits.train, 5_000, 7_000), part(splits.validation, 0, 4_000))


def _table() -> Parts:
    from benchmarks.tabular.tables import data_of

    inputs, labels = data_of("many_classes")
    ends = ((0, 10_000), (10_000, 15_000), (15_000, 25_000))
    return Parts(*((inputs[start:stop], labels[start:stop]) for start, stop in ends))


def _text() -> Parts:
    splits = text()
    (inputs, targets), kept = splits.train, -1_000
    return Parts((inputs[:kept], targets[:kept]), (inputs[kept:], targets[kept:]), splits.validation)


def _lstm() -> nn.Module:
    return LSTMLanguageModel(text().classes, embedding=32, hidden=64, layers=1)


def _transformer() -> nn.Module:
    return Transformer(text().classes, width=32, heads=2, layers=2, context=32)


def _mlp() -> nn.Module:
    from benchmarks.tabular.contestants import network

    return network(40, 64, 5)


RATES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
BUDGETS = (4_096, 12_288)
_small_lenet = functools.partial(LeNet, 10, 1, 7)

TASKS = {
    "digits": Task(
        "LeNet on digits",
        "LeNet on 1,000 of scikit-learn's digits (8x8); 442 to choose by, 355 to test",
        functools.partial(LeNet, 10, 1, 8),
        _digits,
        (2_048, 8_192),
    ),
    "table": Task(
        "MLP on a table",
        "MLP (40-64-64-5) on 10,000 rows of `make_classification`; 5,000 to choose by, 10,000 to test",
        _mlp,
        _table,
        (8_192, 32_768),
        throughput="mlp",
    ),
    "fashion": Task(
        "LeNet on Fashion-MNIST",
        "LeNet on 5,000 pictures of Fashion-MNIST, averaged to 7x7; 2,000 to choose by, 4,000 to test",
        _small_lenet,
        _fashion,
        BUDGETS,
        ranks=2,
    ),
    "noisy": Task(
        "LeNet on Fashion-MNIST, noisy labels",
        "the same, where 20 % of the labels to train on are of another class",
        _small_lenet,
        functools.partial(_fashion, 0.2),
        BUDGETS,
        ranks=2,
    ),
    "residual": Task(
        "ResNet-8 on Fashion-MNIST",
        "ResNet-8, 8 to 32 channels, on the same 5,000 pictures, averaged to 14x14",
        functools.partial(ResNet, 8, 10, channels=1, width=8),
        functools.partial(_fashion, pixels=14),
        BUDGETS,
        throughput="resnet8",
        ranks=1,
    ),
    "lstm": Task(
        "LSTM on text",
        "a language model of one LSTM layer of 64 on the characters of Python's help texts; samples are sequences of "
        "32, accuracy is that of the next character; 1,000 sequences to choose by",
        _lstm,
        _text,
        BUDGETS,
        loss=sequence_cross_entropy,
        throughput="lstm",
        ranks=1,
    ),
    "transformer": Task(
        "transformer on text",
        "the same with a transformer of two layers, width 32, two heads",
        _transformer,
        _text,
        BUDGETS,
        loss=sequence_cross_entropy,
        throughput=None,
        ranks=1,
    ),
}


class LastPart(LocalSGD):
    """Learners train alone, and are averaged in every round of the last part."""

    def __init__(self, start: int) -> None:
        super().__init__(every=1)
        self.start_at = start

    def due(self, round_index: int, learners: int) -> bool:
        """Whether the last part has begun."""
        return round_index >= self.start_at


@dataclass(frozen=True)
class Contestant:
    """One way to train."""

    title: str
    learners: int = 1
    batch_size: int = 16
    sync: Callable[[int], Synchroniser] = field(default=lambda rounds: bow.SMA())  # from the number of rounds
    warmup: float = 0.0
    rank: int = 2  # 1: takes part everywhere; 2: with the long budgets; 3: with those of some tasks
    has_ema: bool = True  # whether z moves throughout, so that its moving average says something

    @property
    def is_single(self) -> bool:
        """Whether it is the ordinary training of one learner."""
        return self.learners == 1 and isinstance(self.sync(1), bow.SMA)


def _sma(title: str, *, rank: int = 2, learners: int = 4, batch_size: int = 16, **settings: Any) -> Contestant:
    return Contestant(title, learners, batch_size, lambda rounds: bow.SMA(**settings), rank=rank)


CONTESTANTS = {
    "one_16": Contestant("one learner, batch 16", rank=1),
    "one_32": Contestant("one learner, batch 32", batch_size=32, rank=1),
    "one_64": Contestant("one learner, batch 64", batch_size=64, rank=1),
    "one_128": Contestant("one learner, batch 128", batch_size=128, rank=1),
    "warm_128": Contestant("one learner, batch 128, warm-up", batch_size=128, warmup=WARM_UP),
    "outer_1": Contestant("one learner, batch 16, outer Nesterov every 16", 1, 16, lambda rounds: DiLoCo(every=16)),
    "local_4": Contestant("LocalSGD every 16, 4 x 16", 4, 16, lambda rounds: LocalSGD(every=16)),
    "diloco_4": Contestant("DiLoCo every 16, 4 x 16", 4, 16, lambda rounds: DiLoCo(every=16)),
    "last_4": Contestant(
        "averaged in the last fifth, 4 x 16", 4, 16, lambda rounds: LastPart(int(LAST * rounds)), has_ema=False
    ),
    "sma_2": _sma("SMA, 2 x 16", learners=2, rank=1),
    "sma_4": _sma("SMA, 4 x 16", rank=1),
    "sma_8": _sma("SMA, 8 x 16", learners=8, rank=1),
    "sma_2x32": _sma("SMA, 2 x 32", learners=2, batch_size=32, rank=3),
    "sma_8x8": _sma("SMA, 8 x 8", learners=8, batch_size=8),
    "alpha_0.1": _sma("SMA, 4 x 16, alpha 0.1", alpha=0.1),
    "alpha_0.01": _sma("SMA, 4 x 16, alpha 0.01", alpha=0.01, rank=3),
    "every_4": _sma("SMA, 4 x 16, every 4", every=4, rank=3),
    "every_16": _sma("SMA, 4 x 16, every 16", every=16),
    "every_64": _sma("SMA, 4 x 16, every 64", every=64, rank=3),
    "mu_0": _sma("SMA, 4 x 16, mu 0", mu=0.0, rank=3),
    "no_restart": _sma("SMA, 4 x 16, no restarts", restart=None, rank=3),
}


class Cell(NamedTuple):
    """What is tuned and trained together: one contestant, with one task and budget."""

    task: str
    budget: int
    contestant: str


class Plan(NamedTuple):
    """How cells are trained."""

    rates: tuple[float, ...]
    trials: int  # seeds of the sweep, from `SWEEP_SEED` on
    seeds: int  # of the finals, from 0 on
    engine: EngineName
    ends_at: float  # no cell begins later, by `time.time()`


# Accuracies of the central model, and of the moving average of its weights; 0 where it diverged
Readings = tuple[float, float]


def carry_out(cell: Cell, plan: Plan) -> dict[str, Any] | None:
    """Choose the learning rates of a cell, and train its finals; None where it is too late.

    The sweep climbs: from the middle of the grid, until the rates beside the best one are worse, without and with the
    moving average.
    """
    if time.time() > plan.ends_at:
        return None
    began, has_ema = time.perf_counter(), CONTESTANTS[cell.contestant].has_ema
    swept: dict[int, Readings] = {}
    wanted, trainings = {len(plan.rates) // 2}, 0
    while wanted:
        for index in sorted(wanted):
            found = [
                train(cell, plan.rates[index], SWEEP_SEED + trial, plan.engine, ("validation",))["validation"]
                for trial in range(plan.trials)
            ]
            trainings += plan.trials
            swept[index] = statistics.fmean(own for own, _ in found), statistics.fmean(ema for _, ema in found)
        bests = [max(swept, key=lambda index: (swept[index][ema], -index)) for ema in range(1 + has_ema)]
        beside = {index + step for index in bests for step in (-1, 1)}
        wanted = {index for index in beside if 0 <= index < len(plan.rates)} - set(swept)
    finals = {
        index: [train(cell, plan.rates[index], seed, plan.engine) for seed in range(plan.seeds)] for index in set(bests)
    }
    return {
        "sweep": [[plan.rates[index], *(round(value, 5) for value in swept[index])] for index in sorted(swept)],
        "rates": [plan.rates[index] for index in bests],
        **{
            part: [[each[part][ema] for each in finals[index]] for ema, index in enumerate(bests)]
            for part in ("validation", "test")
        },
        "trainings": trainings + plan.seeds * len(finals),
        "seconds": round(time.perf_counter() - began, 1),
    }


def train(
    cell: Cell, rate: float, seed: int, engine: EngineName, read: Sequence[str] = ("validation", "test")
) -> dict[str, Readings]:
    """Train once, on one core."""
    task, contestant = TASKS[cell.task], CONTESTANTS[cell.contestant]
    parts = parts_of(cell.task)
    rounds = cell.budget // (contestant.learners * contestant.batch_size)
    torch.manual_seed(seed)
    # A learner that diverges starts again from the central model, with a warning.
    with _on_one_core(engine == "graph"), warnings.catch_warnings(action="ignore"):
        replicas = bow.Replicas(
            task.model,
            task.loss,
            optimizer=functools.partial(torch.optim.SGD, lr=rate, momentum=MOMENTUM),
            learners=contestant.learners,
            engine=engine,
            sync=contestant.sync(rounds),
            device="cpu",
            seed=seed,
        )
        schedule: Any = bow.WarmupCosine(contestant.warmup).factory
        scheduler = schedule(replicas.optimizer, rounds=rounds)
        average = MovingAverage(replicas, 1 - 1 / max(1.25, HORIZON * rounds))
        stream = open_stream(parts.train, batch_size=contestant.batch_size, steps=rounds, seed=seed)
        try:
            for _ in range(rounds):
                deal = stream.deal(contestant.learners)
                assert deal is not None
                replicas.round(deal.batches)
                average.round_ended()
                scheduler.step()
        except DivergenceError:
            return dict.fromkeys(read, (0.0, 0.0))
        samples = parts._asdict()
        own = [accuracy(replicas, samples[part]) for part in read]
        with average.in_place():
            emas = [accuracy(replicas, samples[part]) for part in read]
        return dict(zip(read, zip(own, emas, strict=True), strict=True))


@functools.cache
def parts_of(task: str) -> Parts:
    """The samples of a task, read once in a process."""
    return TASKS[task].parts()


@torch.no_grad()
def accuracy(replicas: bow.Replicas, samples: Samples) -> float:
    """The share of the samples, or of their tokens, that the central model classifies correctly."""
    return round(float((replicas(samples[0]).argmax(-1) == samples[1]).double().mean()), 5)


@contextmanager
def _on_one_core(is_pinned: bool) -> Iterator[None]:
    """Engine `graph` pins executors: the processes of a pool take different cores."""
    cores = sorted(os.sched_getaffinity(0))
    if is_pinned:
        number = (current_process()._identity or (0,))[0]
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
