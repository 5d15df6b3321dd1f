"""The sweep for people: tables and a picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import Environment
from benchmarks.results import Table
from benchmarks.sweep_rule import GOAL, Case, Cell, Verdict, group, median_accuracy, summarize
from benchmarks.trial import Trial
from bow.observe.charts import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"lenet": "LeNet", "mlp": "MLP"}
# One for each mu; a single learner, where mu has no effect, is grey
COLORS = ("#2563a8", "#d9822b", "#2a9d6f", "#8f4fa8", "#b23a48")
GREY = "#5b6577"
# Of the axis of accuracies, which is logarithmic in the errors; what is below the first one has failed
TICKS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
CROSS: dict[str, Any] = {"marker": "x", "markersize": 5, "markeredgewidth": 1.4, "linestyle": ""}
# How far, as a share of the learning rate, the lines of neighbouring mu are drawn apart, so that all can be seen
DODGE = 0.07


def markdown(
    trials: Sequence[Trial], verdict: Verdict | None, values: Mapping[str, Any], environment: Environment
) -> str:
    """The page `sweep.md`, from the same values as `sweep.json`."""
    outcome = "" if verdict is None else f"## The default of mu\n\n{verdict.rule}\n\n**{verdict}**\n\n"
    return (
        "# Learning rate, mu and the number of learners\n\n"
        f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s. {environment}.\n\n"
        f"Digits; {values['settings']['epochs']} epochs; fixed: {values['fixed']}. Shown is the "
        f"{values['metric']}; medians over {values['settings']['seeds']} seeds, in parentheses the lowest and the "
        "highest of those that did not diverge. A training that diverged is accuracy 0 in the medians; ✗ counts them."
        "\n\n"
        "![accuracy against learning rate](sweep.png)\n\n"
        f"{outcome}"
        f"## Best over learning rates\n\n{best_table(trials).markdown()}\n"
        f"## All of it\n\n{accuracy_table(trials).markdown()}"
    )


def best_table(trials: Sequence[Trial]) -> Table:
    """A row for every case and mu: the best accuracy, where it is, and how wide and fast it is reached."""
    rows = [
        (
            TITLES[record.case.model],
            str(record.case.learners),
            _mu(record.mu),
            _percent(record.best_accuracy),
            f"{record.best_lr:g}",
            str(len(record.usable)),
            _range(record.usable),
            "never" if math.isinf(record.epochs_to_goal) else f"{record.epochs_to_goal:g}",
        )
        for record in summarize(trials)
    ]
    headings = ["model", "learners", "mu", "best accuracy", "at lr", "usable lr", "from-to", f"epochs to {GOAL:.0%}"]
    return Table(headings, rows, left=["model"])


def accuracy_table(trials: Sequence[Trial]) -> Table:
    """A row for every case and learning rate, a column for every mu."""
    cells = group(trials)
    mus = _mus(cells)
    rows = []
    for model, learners, lr in dict.fromkeys((cell.model, cell.learners, cell.lr) for cell in cells):
        found = [cells.get(Cell(model, learners, mu, lr), []) for mu in (None, *mus)]
        rows.append((TITLES[model], str(learners), f"{lr:g}", *map(_cell_text, found)))
    headings = ["model", "learners", "lr", "any mu", *(f"mu {mu:g}" for mu in mus)]
    return Table(headings, rows, left=["model"])


def draw(trials: Sequence[Trial], path: Path) -> None:
    """The picture: a panel for every case, accuracy against learning rate, a line for every mu."""
    import matplotlib
    from matplotlib.figure import Figure

    cells = group(trials)
    models = list(dict.fromkeys(cell.model for cell in cells))
    learners = list(dict.fromkeys(cell.learners for cell in cells))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 2.6 * len(learners), 0.9 + 2.5 * len(models)), layout="constrained", dpi=160)
        grid = figure.subplots(len(models), len(learners), sharex="row", sharey=True, squeeze=False)
        for row, model in enumerate(models):
            for column, count in enumerate(learners):
                axes = grid[row][column]
                _dress(axes, sorted({cell.lr for cell in cells if cell.model == model}))
                _draw_case(axes, cells, Case(model, count))
                axes.set_title(f"{TITLES[model]}, {count} learner{'s' if count > 1 else ''}", fontsize=9, loc="left")
                axes.set_xlabel("learning rate" if row == len(models) - 1 else "")
                axes.set_ylabel("accuracy of the central model" if column == 0 else "")
        _legend(figure, cells)
        figure.savefig(path)


def _draw_case(axes: "Axes", cells: Mapping[Cell, list[Trial]], case: Case) -> None:
    mus = _mus(cells)
    for mu in (None, *mus):
        line = {c.lr: t for c, t in sorted(cells.items()) if (c.model, c.learners, c.mu) == (*case, mu)}
        shift = 1.0 if mu is None else (1 + DODGE) ** (mus.index(mu) - (len(mus) - 1) / 2)
        whole = {lr: trials for lr, trials in line.items() if median_accuracy(trials) > 0}
        rates = [lr * shift for lr in whole]
        errors = [sorted(1 - trial.accuracy for trial in trials if not trial.diverged) for trials in whole.values()]
        color = _color(mu, mus)
        medians = [1 - median_accuracy(trials) for trials in whole.values()]
        axes.plot(rates, medians, color=color, marker="o", markersize=3)
        axes.fill_between(rates, [e[0] for e in errors], [e[-1] for e in errors], color=color, alpha=0.15, linewidth=0)
        crosses = [lr * shift for lr, trials in line.items() if any(trial.diverged for trial in trials)]
        height = 1.15 ** (1 if mu is None else 1 + mus.index(mu)) * (1 - TICKS[0])
        axes.plot(crosses, [height] * len(crosses), color=color, **CROSS)


def _dress(axes: "Axes", rates: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(rates)))
    axes.yaxis.set_major_locator(FixedLocator([1 - tick for tick in TICKS]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("0.", "."))
    axes.yaxis.set_major_formatter(lambda error, _: f"{100 * (1 - error):.0f}%")
    axes.set_ylim(1.8 * (1 - TICKS[0]), 0.75 * (1 - TICKS[-1]))
    axes.set_xlim(rates[0] / 1.35, rates[-1] * 1.35)
    axes.grid(axis="y")


def _legend(figure: "Figure", cells: Mapping[Cell, list[Trial]]) -> None:
    from matplotlib.lines import Line2D

    mus = _mus(cells)
    handles = [Line2D([], [], color=_color(mu, mus), marker="o", markersize=3, label=f"mu {mu:g}") for mu in mus]
    if any(cell.mu is None for cell in cells):
        handles.append(Line2D([], [], color=GREY, marker="o", markersize=3, label="one learner: mu has no effect"))
    handles.append(Line2D([], [], color=GREY, label="one training or more diverged", **CROSS))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=9)


def _color(mu: float | None, mus: Sequence[float]) -> str:
    return GREY if mu is None else COLORS[mus.index(mu) % len(COLORS)]


def _mus(cells: Mapping[Cell, list[Trial]]) -> list[float]:
    return sorted({cell.mu for cell in cells if cell.mu is not None})


def _cell_text(trials: Sequence[Trial]) -> str:
    if not trials:
        return ""
    diverged = sum(trial.diverged for trial in trials)
    if diverged == len(trials):
        return "✗"
    values = sorted(trial.accuracy for trial in trials if not trial.diverged)
    text = f"{_percent(median_accuracy(trials))} ({100 * values[0]:.1f}-{100 * values[-1]:.1f})"
    return f"{text} ✗{diverged}" if diverged else text


def _range(rates: Sequence[float]) -> str:
    return f"{min(rates):g}-{max(rates):g}" if rates else "none"


def _mu(mu: float | None) -> str:
    return "any" if mu is None else f"{mu:g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
