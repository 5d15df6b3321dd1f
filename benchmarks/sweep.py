"""Learning rate x mu x learners on real data, from which the default of mu is chosen.

Every training is LeNet or an MLP on scikit-learn's digits, with batch size 16 per learner, SGD with momentum 0.9 in the
learners, a constant learning rate, `SMA` with the default `alpha` in every round, and the same number of epochs, that
is, of samples of all learners together. Variables: the learning rate, `mu`, the number of learners, and the seed of
initialisation and shuffling. With one learner `mu` has no effect and is not varied.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.harness import setting
from benchmarks.harness.pictures import COLORS, GREY, legend, picture
from benchmarks.sweep_rule import MODELS, Point, Trial, decide, group, median_accuracy, summarize, train, trial_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From too small for the number of epochs to diverging
LEARNING_RATES = {
    "lenet": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    "mlp": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
}


@dataclass(frozen=True)
class Config(harness.Config):
    models: tuple[str, ...] = setting(tuple(MODELS), "models to train", choices=tuple(MODELS), quick=("mlp",))
    learners: tuple[int, ...] = setting((1, 2, 4, 8), "numbers of learners", quick=(1, 2))
    mus: tuple[float, ...] = setting((0.0, 0.5, 0.9), "values of mu", quick=(0.0, 0.5), least=0)
    seeds: int = setting(3, "number of seeds", quick=1)
    epochs: int = setting(15, "epochs of each training", quick=2)
    workers: int = setting(2, "number of single-threaded processes")

    def points(self) -> Iterator[Point]:
        for model in self.models:
            for learners in self.learners:
                for mu in self.mus if learners > 1 else (None,):
                    for lr in LEARNING_RATES[model]:
                        for seed in range(self.seeds):
                            yield Point(model, learners, mu, lr, seed)


def measure(config: Config) -> dict[str, Any]:
    """Train all points, and choose mu."""
    jobs = [functools.partial(train, point, config.epochs) for point in config.points()]
    trials = []
    for trial in harness.parallel(jobs, config.workers):
        trials.append(trial)
        harness.say(f"{len(trials)} of {len(jobs)}: {trial.point} {trial.accuracy:.1%}")
    verdict = decide(trials)
    return {
        "fixed": "batch 16 per learner, SGD momentum 0.9 in the learners, constant learning rate, alpha 1/learners, "
        "averaging in every round, engine eager, one thread",
        "metric": "accuracy of the central model on the 355 held-out digits, median of the last 3 epochs",
        "rule": None if verdict is None else verdict.rule,
        "verdict": None if verdict is None else verdict.as_dict(),
        "trials": [asdict(trial.point) | trial.measured() for trial in trials],
    }


TITLES = {"lenet": "LeNet", "mlp": "MLP"}
TICKS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99)  # of the accuracy axis, logarithmic in the error
CROSS: dict[str, Any] = {"marker": "x", "markersize": 5, "markeredgewidth": 1.4, "linestyle": ""}
DODGE = 0.07  # horizontal distance of the lines of adjacent mu, as a fraction of the learning rate


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    """Additional values for the page template: records by case and mu, and the trials of every cell."""
    trials = [trial_of(each) for each in values["trials"]]
    cells: dict[tuple[str, int, float], dict[float | None, list[Any]]] = {}
    for each in values["trials"]:
        own = cells.setdefault((each["model"], each["learners"], each["lr"]), {})
        own.setdefault(each["mu"], []).append(each)
    records = [record.as_dict() for record in summarize(trials)]
    return {"titles": TITLES, "records": records, "cells": cells, "mus": _mus(trials)}


def draw(values: Mapping[str, Any], folder: Path) -> None:
    """Plot accuracy against learning rate, a panel for every case and a line for every mu."""
    trials = [trial_of(each) for each in values["trials"]]
    models = list(dict.fromkeys(trial.point.model for trial in trials))
    learners = list(dict.fromkeys(trial.point.learners for trial in trials))
    mus = _mus(trials)
    size = 1.2 + 2.6 * len(learners), 0.9 + 2.5 * len(models)
    with picture(folder / "sweep.png", *size) as figure:
        grid = figure.subplots(len(models), len(learners), sharex="row", sharey=True, squeeze=False)
        for row, model in enumerate(models):
            for column, count in enumerate(learners):
                axes = grid[row][column]
                _dress(axes, sorted({trial.point.lr for trial in trials if trial.point.model == model}))
                _draw_case(axes, [t for t in trials if (t.point.model, t.point.learners) == (model, count)], mus)
                axes.set_title(f"{TITLES[model]}, {harness.counted(count, 'learner')}", fontsize=9, loc="left")
                axes.set_xlabel("learning rate" if row == len(models) - 1 else "")
                axes.set_ylabel("accuracy of the central model" if column == 0 else "")
        dots = {"marker": "o", "markersize": 3}
        lines = [(f"mu {mu:g}", {"color": COLORS[index], **dots}) for index, mu in enumerate(mus)]
        lines += [("one learner: mu has no effect", {"color": GREY, **dots})] * (1 in learners)
        legend(figure, [*lines, ("one training or more diverged", {"color": GREY, **CROSS})])


def _draw_case(axes: "Axes", trials: list[Trial], mus: list[float]) -> None:
    for mu in dict.fromkeys(trial.point.mu for trial in trials):
        line = {cell.lr: own for cell, own in sorted(group([t for t in trials if t.point.mu == mu]).items())}
        place = -1 if mu is None else mus.index(mu)
        shift = 1.0 if mu is None else (1 + DODGE) ** (place - (len(mus) - 1) / 2)
        color = GREY if mu is None else COLORS[place]
        whole = {lr * shift: own for lr, own in line.items() if median_accuracy(own) > 0}
        errors = [sorted(1 - trial.accuracy for trial in own if not trial.diverged) for own in whole.values()]
        axes.plot(
            list(whole), [1 - median_accuracy(own) for own in whole.values()], color=color, marker="o", markersize=3
        )
        axes.fill_between(list(whole), [e[0] for e in errors], [e[-1] for e in errors], color=color, alpha=0.15, lw=0)
        crosses = [lr * shift for lr, own in line.items() if any(trial.diverged for trial in own)]
        axes.plot(crosses, [1.15 ** (place + 1) * (1 - TICKS[0])] * len(crosses), color=color, **CROSS)


def _dress(axes: "Axes", rates: list[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator(rates))
    axes.yaxis.set_major_locator(FixedLocator([1 - tick for tick in TICKS]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("0.", "."))
    axes.yaxis.set_major_formatter(lambda error, _: f"{100 * (1 - error):.0f}%")
    axes.set_ylim(1.8 * (1 - TICKS[0]), 0.75 * (1 - TICKS[-1]))
    axes.set_xlim(rates[0] / 1.35, rates[-1] * 1.35)
    axes.grid(axis="y")


def _mus(trials: list[Trial]) -> list[float]:
    return sorted({trial.point.mu for trial in trials if trial.point.mu is not None})
