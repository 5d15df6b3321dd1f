"""Forms of the figures: models, data and amounts that replace the paper's, and the entries to measure.

Even the full form differs from the paper. Its LeNet has 4.24 MB of parameters, ours 1.72 MB (431,080), its ResNet-32
1.79 MB, ours 1.86 MB (464,154); logistic regression has 0.0314 MB (7,850) in both. The paper states neither learning
rates nor augmentation: the rates are our choice, and images are not augmented.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.harness import counted
from benchmarks.workloads import CLASSES, COLOR, WORKLOADS, Workload
from bow.data import DataSplits, cifar10, digits, fashion_mnist, mnist
from bow.models import LeNet, LogisticRegression, ResNet
from bow.sync import SMA, Independent, Synchroniser

MOMENTUM = 0.9
SIZES, QUICK = ("small", "full"), "quick"

RESNET32 = Workload("ResNet-32", functools.partial(ResNet, 32, CLASSES), COLOR)


PYTORCH, BOW = "pytorch", "bow"
PLAIN_TITLE = "plain PyTorch"
INDEPENDENT, AVERAGED = "independent", "SMA"

SYNCS: dict[str, Callable[[], Synchroniser]] = {INDEPENDENT: Independent, AVERAGED: SMA}
SYNC_TITLES = {INDEPENDENT: "no synchronisation", AVERAGED: "SMA"}

Row = Mapping[str, Any]  # measurements of an entry, as plain values, with the fields of `Entry`


@dataclass(frozen=True)
class Entry:
    """A setting to measure."""

    batch_size: int  # samples per batch; for bow, per learner
    learners: int | None = None  # per device, for bow; None for plain PyTorch
    sync: str | None = None  # synchroniser, a name in `SYNCS`; None for plain PyTorch
    devices: int = 1  # number of devices

    def synchroniser(self) -> Synchroniser:
        assert self.sync is not None
        return SYNCS[self.sync]()

    def as_dict(self) -> dict[str, Any]:
        return {"system": PYTORCH if self.learners is None else BOW, **asdict(self)}


def bow_entries(
    batch_size: int, learners: Iterable[int], syncs: Iterable[str], devices: Iterable[int] = (1,)
) -> list[Entry]:
    """Return entries of bow for all combinations."""
    return [Entry(batch_size, k, sync, n) for n in devices for sync in syncs for k in learners]


def title(row: Row) -> str:
    return PLAIN_TITLE if row["system"] == PYTORCH else f"bow, {counted(row['learners'], 'learner')}"


def values_of(rows: Iterable[Row], measure: str) -> list[float]:
    """Return the measurements of several rows, each of which has one, several or none."""
    found: list[float] = []
    for row in rows:
        value = row[measure]
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def matches(row: Row, pick: Mapping[str, Any]) -> bool:
    """Whether the row has all of these values."""
    return all(row[field] == value for field, value in pick.items())


@dataclass(frozen=True)
class Lesson:
    """Training task of a convergence figure: a model on real data, up to a target."""

    model: str  # display name
    build: Callable[[], nn.Module]  # makes it
    data: str  # display name of the data set
    load: Callable[[str], DataSplits]  # reads it from a folder
    target: float  # target accuracy, as a fraction
    epochs: int  # maximum number
    lr: float  # learning rate, the same for every batch size and number of learners
    weight_decay: float  # of SGD
    batch_sizes: tuple[int, ...]  # to try with plain PyTorch
    stops: bool  # whether a training ends when it reaches the target
    other_rates: tuple[float, ...] = ()  # learning rates that figures 5.4 and 5.5 try beside it, for all contestants

    @property
    def fixed(self) -> str:
        """Settings common to all trainings."""
        return (
            f"constant learning rate {self.lr:g} whatever the batch size and the number of learners, SGD with momentum "
            f"{MOMENTUM:g} and weight decay {self.weight_decay:g}, no augmentation, float32, at most {self.epochs} "
            "epochs; bow runs engine graph, not compiled, and averages by SMA in every round; initial weights and "
            "order of samples depend on the seed only"
        )


@dataclass(frozen=True)
class Form:
    """A form of all figures."""

    logistic: Workload  # of figure 5.6
    lenet: Workload  # of figures 5.8 and 5.11
    resnet: Workload  # of figures 5.7, 5.9, 5.10, 5.12 and 5.13
    lenet_lesson: Lesson  # of figures 5.3 to 5.5
    resnet_lesson: Lesson  # of figures 5.1 and 5.2
    small_batch: int  # of figures 5.4 and 5.5
    learners: tuple[int, ...]  # of figures 5.7, 5.11 and 5.12
    many_learners: tuple[int, ...]  # of figures 5.6 and 5.8, whose models are smaller
    converging_learners: tuple[int, ...]  # of figures 5.4 and 5.5, in addition to one
    batch_sizes: tuple[int, ...]  # of figure 5.10
    devices: tuple[int, ...]  # of figure 5.9; figure 5.13 uses those up to 2
    seeds: int  # number of trainings of each kind
    runs: int  # of each contestant, each a new training; the number of values of a box
    stint_s: float  # measured seconds of a run
    samples: int  # size of the data set for throughput


def _fashion(samples: int) -> Callable[[str], DataSplits]:
    """Return a loader of so many training samples, and of 2,000 test samples."""

    def load(_: str) -> DataSplits:
        splits = fashion_mnist(limit=samples)
        inputs, targets = splits.validation
        return replace(splits, validation=(inputs[:2000], targets[:2000]))

    return load


def _mnist(root: str) -> DataSplits:
    return mnist(_folder(root, "mnist"))


def _cifar10(root: str) -> DataSplits:
    return cifar10(_folder(root, "cifar10"))


def _folder(root: str, name: str) -> Path | None:
    """Return the data set's own folder below root, or root itself; None if root is empty."""
    if not root:
        return None
    own = Path(root) / name
    return own if own.is_dir() else Path(root)


_TINY = WORKLOADS["logistic_regression"]
_TINY_LESSON = Lesson(
    "logistic regression",
    functools.partial(LogisticRegression, 64, CLASSES),
    "320 digits",
    lambda _: digits(limit=320),
    target=0.6,
    epochs=3,
    lr=0.02,
    weight_decay=0.0,
    batch_sizes=(8, 16, 64),
    stops=False,
    other_rates=(0.04,),
)

FORMS: dict[str, Form] = {
    "small": Form(
        logistic=WORKLOADS["logistic_regression"],
        lenet=WORKLOADS["lenet"],
        resnet=WORKLOADS["resnet8"],
        # Rates from the middle of the sweep (benchmark `sweep`). Targets are just below the plateau of the models.
        lenet_lesson=Lesson(
            "LeNet",
            functools.partial(LeNet, CLASSES),
            "4,000 pictures of Fashion-MNIST",
            _fashion(4000),
            target=0.8,
            epochs=10,
            lr=0.005,
            weight_decay=0.0,
            batch_sizes=(4, 8, 16, 32, 64),
            stops=True,
            other_rates=(0.0025, 0.01),
        ),
        resnet_lesson=Lesson(
            "ResNet-8",
            functools.partial(ResNet, 8, CLASSES, channels=1),
            "2,000 pictures of Fashion-MNIST",
            _fashion(2000),
            target=0.7,
            epochs=10,
            lr=0.1,
            weight_decay=1e-4,
            batch_sizes=(32, 64, 128, 256, 1024),
            stops=False,
        ),
        small_batch=4,
        learners=(1, 2, 3, 4, 8),
        many_learners=(1, 2, 3, 4, 8),
        converging_learners=(2, 3, 4, 8),
        batch_sizes=(32, 64, 128, 256),
        devices=(1, 2, 4),
        seeds=3,
        runs=5,
        stint_s=0.5,
        samples=4096,
    ),
    "full": Form(
        logistic=WORKLOADS["logistic_regression"],
        lenet=WORKLOADS["lenet"],
        resnet=RESNET32,
        lenet_lesson=Lesson(
            "LeNet",
            functools.partial(LeNet, CLASSES),
            "MNIST",
            _mnist,
            target=0.99,
            epochs=100,
            lr=0.002,
            weight_decay=0.0,
            batch_sizes=(4, 8, 16, 32, 64),
            stops=True,
            other_rates=(0.004, 0.008),
        ),
        resnet_lesson=Lesson(
            "ResNet-32",
            functools.partial(ResNet, 32, CLASSES),
            "CIFAR-10",
            _cifar10,
            target=0.8,
            epochs=80,
            lr=0.1,
            weight_decay=1e-4,
            batch_sizes=(64, 128, 256, 512, 1024),
            stops=False,
        ),
        small_batch=4,
        learners=(1, 2, 3, 4),
        many_learners=(1, 2, 3, 4, 5, 6, 7, 8),
        converging_learners=(2, 3, 4),
        batch_sizes=(16, 32, 64, 128, 256, 512),
        devices=(1, 2, 4),
        seeds=5,
        runs=5,
        stint_s=3.0,
        samples=16384,
    ),
    "quick": Form(
        logistic=_TINY,
        lenet=_TINY,
        resnet=_TINY,
        lenet_lesson=_TINY_LESSON,
        resnet_lesson=_TINY_LESSON,
        small_batch=8,
        learners=(1, 2),
        many_learners=(1, 2),
        converging_learners=(2,),
        batch_sizes=(16, 32),
        devices=(1, 2),
        seeds=1,
        runs=2,
        stint_s=0.01,
        samples=512,
    ),
}
