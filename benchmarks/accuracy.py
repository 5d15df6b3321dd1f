"""`python -m benchmarks accuracy`: how far LeNet gets on real images, epoch by epoch.

The whole of `bow.train` runs, as a user would run it: four learners of batch 16 on Fashion-MNIST, averaged by `SMA`
in every round, the central model evaluated on the 10,000 test images after every epoch. The
number of epochs is fixed, and the accuracies of all epochs are reported. One thing was chosen by looking at test
images: a cosine rather than a constant learning rate, after one training of each (last epoch 91.56% against 90.11%).
"""

import functools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from benchmarks.accuracy_report import Training, markdown, table
from benchmarks.arguments import check_positive, setting
from benchmarks.environment import inspect_environment
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from bow.data import DataSplits, digits, fashion_mnist, mnist
from bow.models import LeNet
from bow.sync import SMA
from bow.training import train

MOMENTUM = 0.9
DATA: dict[str, Callable[..., DataSplits]] = {"fashion_mnist": fashion_mnist, "mnist": mnist, "digits": digits}


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for accuracy.json and accuracy.md")  # noqa: RUF009 - it is dataclasses.field
    data: str = setting("fashion_mnist", "data set", choices=tuple(DATA))
    root: str = setting("", "folder of its files; empty: where they usually are")
    learners: int = setting(4, "learners")
    batch_size: int = setting(16, "samples per learner and round")
    epochs: int = setting(8, "epochs of each training")
    lr: float = setting(0.02, "learning rate")
    schedule: str = setting("cosine", "whether it falls to 0 along a cosine", choices=("cosine", "constant"))
    target: float = setting(0.9, "accuracy to be reached, as a share")
    seeds: int = setting(3, "trainings")
    threads: int = setting(1, "torch's threads")
    quick: bool = setting(False, "a small part, to see that it works: one seed, one epoch, the digits")

    def __post_init__(self) -> None:
        check_positive(self, "learners", "batch_size", "epochs", "lr", "target", "seeds", "threads")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        return replace(self, data="digits", root="", seeds=1, epochs=1) if self.quick else self


def run(settings: Settings, command: str) -> int:
    """Train every seed, and write `accuracy.json` and `accuracy.md`; 1 when the target was missed, else 0."""
    settings = settings.reduced()
    prepare_output(settings.out)
    splits = DATA[settings.data](settings.root) if settings.root else DATA[settings.data]()
    began, threads = time.perf_counter(), torch.get_num_threads()
    trainings: list[Training] = []
    torch.set_num_threads(settings.threads)
    try:
        for seed in range(settings.seeds):
            trainings.append(train_one(splits, settings, seed))
            console().print(trainings[-1].summary(settings.target), highlight=False)
    finally:
        torch.set_num_threads(threads)
    findings = {
        "fixed": f"LeNet with 20 and 50 filters and 500 hidden units, SGD with momentum {MOMENTUM:g}, {SMA()!r}, "
        "no augmentation, float32",
        "metric": f"accuracy of the central model on the {len(splits.validation[1]):,} test images",
        "target_reached": all(training.epoch_of(settings.target) is not None for training in trainings),
        "trainings": [training.as_dict(settings.target) for training in trainings],
    }
    environment = inspect_environment()
    result = Result("accuracy", command, environment, settings, time.perf_counter() - began, findings)
    values = result.as_dict()
    write_json(settings.out / "accuracy.json", values)
    write_text(settings.out / "accuracy.md", markdown(trainings, values, environment))
    table(trainings, settings.target).show("accuracy of the central model after each epoch")
    return 0 if findings["target_reached"] else 1


def train_one(splits: DataSplits, settings: Settings, seed: int) -> Training:
    """Train with one seed; the run directory is not kept."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            functools.partial(LeNet, splits.classes, channels=1, size=splits.train[0].shape[-1]),
            splits.train,
            cross_entropy,
            optimizer=functools.partial(torch.optim.SGD, lr=settings.lr, momentum=MOMENTUM),
            lr_scheduler=None
            if settings.schedule == "constant"
            else functools.partial(_cosine, epochs=settings.epochs),
            batch_size=settings.batch_size,
            epochs=settings.epochs,
            learners=settings.learners,
            engine="eager",
            sync=SMA(),
            devices="cpu",
            validation=splits.validation,
            run_dir=Path(folder) / "run",
            progress=False,
            seed=seed,
        )
    history: list[dict[str, Any]] = result.history
    return Training(
        seed=seed,
        accuracies=tuple(record["accuracy"] for record in history),
        losses=tuple(record["loss"] for record in history),
        times_s=tuple(record["time_s"] for record in history),
        throughput=result.throughput,
    )


def _cosine(optimizer: Optimizer, epochs: int) -> LRScheduler:
    return CosineAnnealingLR(optimizer, T_max=epochs)
