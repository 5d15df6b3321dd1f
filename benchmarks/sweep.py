"""`python -m benchmarks sweep`: learning rate x mu x learners on real data; the default of mu follows from it.

Every training is LeNet or an MLP on scikit-learn's digits, with batches of 16 per learner, SGD with momentum 0.9 in
the learners, a constant learning rate, `SMA` with the default `alpha` in every round, and the same number of epochs,
that is of samples seen by all learners together. What is varied: the learning rate, `mu`, the number of learners,
and the seed of initialisation and shuffling. With one learner `mu` has no effect, so it is not varied there.
"""

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.arguments import check_positive, setting
from benchmarks.environment import inspect_environment
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from benchmarks.sweep_report import accuracy_table, best_table, draw, markdown
from benchmarks.sweep_rule import decide
from benchmarks.trial import MODELS, Point, Trial, train

# From rates that are too small for the number of epochs up to rates that diverge
LEARNING_RATES = {
    "lenet": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    "mlp": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
}


@dataclass(frozen=True)
class Settings:
    """Settings of the sweep."""

    out: Path = setting(RESULTS, "folder for sweep.json, sweep.md and sweep.png")  # noqa: RUF009 - it is dataclasses.field
    models: tuple[str, ...] = setting(tuple(MODELS), "models to train", choices=tuple(MODELS))
    learners: tuple[int, ...] = setting((1, 2, 4, 8), "numbers of learners")
    mus: tuple[float, ...] = setting((0.0, 0.5, 0.9), "values of mu")
    seeds: int = setting(3, "trainings of each kind")
    epochs: int = setting(15, "epochs of each training")
    workers: int = setting(2, "processes of one thread each")
    quick: bool = setting(False, "a small part, to see that it works: one seed, two epochs, MLP, 1 and 2 learners")

    def __post_init__(self) -> None:
        check_positive(self, "learners", "seeds", "epochs", "workers")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(self, models=("mlp",), learners=(1, 2), mus=(0.0, 0.5), seeds=1, epochs=2)

    def points(self) -> Iterator[Point]:
        """All trainings."""
        for model in self.models:
            for learners in self.learners:
                for mu in self.mus if learners > 1 else (None,):
                    for lr in LEARNING_RATES[model]:
                        for seed in range(self.seeds):
                            yield Point(model, learners, mu, lr, seed)


def run(settings: Settings, command: str) -> int:
    """Train all points, decide, and write `sweep.json`, `sweep.md` and `sweep.png`."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began = time.perf_counter()
    trials = train_all(list(settings.points()), settings.epochs, settings.workers)
    verdict = decide(trials)
    findings = {
        "fixed": "batch 16 per learner, SGD momentum 0.9 in the learners, constant learning rate, alpha 1/learners, "
        "averaging in every round, engine eager, one thread",
        "metric": "accuracy of the central model on the 355 held-out digits, median of the last 3 epochs",
        "rule": None if verdict is None else verdict.rule,
        "verdict": None if verdict is None else verdict.as_dict(),
        "trials": [asdict(trial.point) | trial.measured() for trial in trials],
    }
    environment = inspect_environment()
    result = Result("sweep", command, environment, settings, time.perf_counter() - began, findings)
    values = result.as_dict()
    write_json(settings.out / "sweep.json", values)
    write_text(settings.out / "sweep.md", markdown(trials, verdict, values, environment))
    draw(trials, settings.out / "sweep.png")
    accuracy_table(trials).show("accuracy of the central model, median over seeds")
    best_table(trials).show("best over learning rates")
    console().print("no verdict: no case of several learners" if verdict is None else str(verdict))
    return 0


def train_all(points: list[Point], epochs: int, workers: int) -> list[Trial]:
    """Train all points in processes of their own, as many at a time as there are workers."""
    # Spawned, because a process that has used torch's threads must not be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        trials = pool.map(train, points, [epochs] * len(points), chunksize=1)
        return list(track(trials, "training", total=len(points), console=console()))
