"""A training of the sweep, and the rule that chooses the default of mu from all of them."""

import functools
import math
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import nn

from bow.data import DataSplits, digits, open_stream
from bow.errors import DivergenceError
from bow.models import MLP, LeNet
from bow.sync import SMA
from bow.training import Accuracy, Replicas
from bow.training.evaluation import Evaluator

BATCH_SIZE = 16
MOMENTUM = 0.9
LAST_EPOCHS = 3  # the accuracy of a training is the median of this many last epochs

MODELS: dict[str, Callable[[], nn.Module]] = {
    "lenet": functools.partial(LeNet, classes=10, channels=1, size=8),
    "mlp": functools.partial(MLP, in_features=64, classes=10, hidden=(256,)),
}


@dataclass(frozen=True)
class Point:
    """The variables of a training."""

    model: str  # a name in `MODELS`
    learners: int  # number of learners
    mu: float | None  # momentum of the central model; None with one learner, where it has no effect
    lr: float  # learning rate
    seed: int  # of initialisation and shuffling


@dataclass(frozen=True)
class Trial:
    point: Point  # what was trained
    accuracies: tuple[float, ...]
    diverged: bool  # whether training ended with a `DivergenceError`
    restarts: int  # number of restarts of single learners from the central model after divergence
    seconds: float  # duration

    @property
    def accuracy(self) -> float:
        """The median of the last epochs; 0 if the training diverged."""
        return 0.0 if self.diverged else statistics.median(self.accuracies[-LAST_EPOCHS:])

    def epochs_to(self, accuracy: float) -> float:
        """Return the first epoch after which the central model had this accuracy; infinity if none."""
        hits = (epoch for epoch, value in enumerate(self.accuracies, 1) if value >= accuracy)
        return next(hits, float("inf"))

    def measured(self) -> dict[str, Any]:
        return {
            "accuracy": round(self.accuracy, 4),
            "diverged": self.diverged,
            "restarts": self.restarts,
            "seconds": round(self.seconds, 2),
            "accuracies": [round(value, 4) for value in self.accuracies],
        }


def train(point: Point, epochs: int) -> Trial:
    """Train one point on the digits."""
    splits, loss = data(), nn.functional.cross_entropy
    torch.manual_seed(point.seed)
    replicas = Replicas(
        MODELS[point.model],
        loss,
        optimizer=functools.partial(torch.optim.SGD, lr=point.lr, momentum=MOMENTUM),
        learners=point.learners,
        engine="eager",
        sync=SMA() if point.mu is None else SMA(mu=point.mu),
        device="cpu",
        seed=point.seed,
    )
    evaluate = Evaluator(splits.validation, loss, (Accuracy(),), None)
    stream = open_stream(splits.train, batch_size=BATCH_SIZE, epochs=epochs, seed=point.seed)
    accuracies: list[float] = []
    began = time.perf_counter()
    diverged = False
    with warnings.catch_warnings(action="ignore"):  # restarts of learners are counted below
        try:
            while (deal := stream.deal(point.learners)) is not None:
                replicas.round(deal.batches)
                if deal.epochs > len(accuracies):
                    accuracies.append(evaluate(replicas.central, replicas.device, replicas.loop.settings)["accuracy"])
        except DivergenceError:
            diverged = True
    return Trial(point, tuple(accuracies), diverged, replicas.loop.num_restarts, time.perf_counter() - began)


@functools.cache
def data() -> DataSplits:
    """Return the digits, cached per process."""
    return digits()


def trial_of(values: Mapping[str, Any]) -> Trial:
    """Return the trial from `asdict(point) | measured()`."""
    point = Point(*(values[field.name] for field in fields(Point)))
    return Trial(point, tuple(values["accuracies"]), values["diverged"], values["restarts"], values["seconds"])


TOLERANCE = 0.01  # accuracies this close (one percentage point, 3.5 of the held-out digits) are considered equal

GOAL = 0.95  # accuracy for `epochs_to_goal`

RULE = (
    "Cases are the pairs of model and number of learners above 1. A learning rate is usable with some mu when its "
    f"accuracy (median over seeds) is within {100 * TOLERANCE:g} percentage point of the best accuracy that any mu and "
    "learning rate reach in that case. Only values of mu with a usable learning rate in every case are admitted. Of "
    "these, the one with the most usable learning rates over all cases wins; a tie goes to the fewest epochs to "
    f"{GOAL:.0%} (with the fastest learning rate of each case, median over seeds, mean over the cases), then to the "
    "smaller mu."
)


class Case(NamedTuple):
    """Values of mu are compared within a case."""

    model: str
    learners: int


class Cell(NamedTuple):
    """Trainings that differ only in their seed."""

    model: str
    learners: int
    mu: float | None
    lr: float


@dataclass(frozen=True)
class Record:
    """Results of one mu in one case."""

    case: Case  # model and learners
    mu: float | None  # the momentum of the central model; None where it has no effect
    best_accuracy: float  # maximum over learning rates of the median over seeds
    best_lr: float  # its learning rate
    usable: tuple[float, ...]  # learning rates whose accuracy is close to the best of the case
    epochs_to_goal: float  # minimum over learning rates of the median over seeds; infinity if never

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.case._asdict(),
            "mu": self.mu,
            "best_accuracy": round(self.best_accuracy, 4),
            "best_lr": self.best_lr,
            "usable_learning_rates": list(self.usable),
            "epochs_to_goal": None if math.isinf(self.epochs_to_goal) else self.epochs_to_goal,
        }


@dataclass(frozen=True)
class Score:
    """Results of one mu in all cases."""

    mu: float  # the momentum of the central model
    admitted: bool  # whether it has a usable learning rate in every case
    usable: int  # number of usable learning rates, over all cases
    epochs_to_goal: float  # mean over the cases


@dataclass(frozen=True)
class Verdict:
    """The result of the sweep."""

    mu: float  # the chosen value
    scores: tuple[Score, ...]  # of every mu
    records: tuple[Record, ...]  # of every mu in every case, one learner included
    rule: str = RULE  # derivation of `mu` from the scores

    def __str__(self) -> str:
        parts = [
            f"mu={score.mu:g} has {score.usable} usable learning rates and reaches {GOAL:.0%} in "
            f"{score.epochs_to_goal:.1f} epochs{'' if score.admitted else ' (not admitted: none usable in some case)'}"
            for score in self.scores
        ]
        return f"mu={self.mu:g} wins: {'; '.join(parts)}."

    def as_dict(self) -> dict[str, Any]:
        return {
            "mu": self.mu,
            "outcome": str(self),
            "scores": [
                {**vars(s), "epochs_to_goal": None if math.isinf(s.epochs_to_goal) else round(s.epochs_to_goal, 2)}
                for s in self.scores
            ],
            "cases": [record.as_dict() for record in self.records],
        }


def decide(trials: Sequence[Trial]) -> Verdict | None:
    """Apply `RULE`; returns None if no training has several learners."""
    records = summarize(trials)
    contested = [record for record in records if record.mu is not None]
    scores = [_score(mu, contested) for mu in sorted({r.mu for r in contested if r.mu is not None})]
    if not scores:
        return None
    # If no mu is admitted, the rule is applied to all of them.
    candidates = [score for score in scores if score.admitted] or scores
    winner = min(candidates, key=lambda score: (-score.usable, score.epochs_to_goal, score.mu))
    return Verdict(winner.mu, tuple(scores), tuple(records))


def summarize(trials: Sequence[Trial]) -> list[Record]:
    """Return the results of every mu in every case, in the order of the trainings."""
    cells = group(trials)
    best_of_case: dict[Case, float] = defaultdict(float)
    for cell, members in cells.items():
        case = Case(cell.model, cell.learners)
        best_of_case[case] = max(best_of_case[case], median_accuracy(members))
    lines: dict[tuple[Case, float | None], dict[float, list[Trial]]] = defaultdict(dict)
    for cell, members in cells.items():
        lines[Case(cell.model, cell.learners), cell.mu][cell.lr] = members
    return [_record(case, mu, line, best_of_case[case]) for (case, mu), line in lines.items()]


def group(trials: Iterable[Trial]) -> dict[Cell, list[Trial]]:
    """Group trainings that differ only in their seed."""
    cells: dict[Cell, list[Trial]] = defaultdict(list)
    for trial in trials:
        point = trial.point
        cells[Cell(point.model, point.learners, point.mu, point.lr)].append(trial)
    return dict(cells)


def median_accuracy(trials: Sequence[Trial]) -> float:
    """Return the median over seeds."""
    return statistics.median(trial.accuracy for trial in trials)


def _record(case: Case, mu: float | None, line: dict[float, list[Trial]], best_of_case: float) -> Record:
    accuracies = {lr: median_accuracy(trials) for lr, trials in line.items()}
    best_lr = max(accuracies, key=accuracies.__getitem__)
    # Rounded, so that 0.98 - 0.01 is not below 0.97 by a rounding error.
    usable = tuple(lr for lr, value in accuracies.items() if round(best_of_case - value, 9) <= TOLERANCE)
    epochs = min(statistics.median(trial.epochs_to(GOAL) for trial in trials) for trials in line.values())
    return Record(case, mu, accuracies[best_lr], best_lr, usable, epochs)


def _score(mu: float, records: Sequence[Record]) -> Score:
    own = [record for record in records if record.mu == mu]
    return Score(
        mu,
        admitted=all(record.usable for record in own),
        usable=sum(len(record.usable) for record in own),
        epochs_to_goal=statistics.fmean(record.epochs_to_goal for record in own),
    )
