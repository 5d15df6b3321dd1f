"""The picture `peers.png`: accuracy against seconds of training."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.pictures import picture
from benchmarks.peers.contestants import BOW, CONTESTANTS, GOODPUT, PYTORCH
from benchmarks.peers.training import Choice, Training, by_choice
from bow.observe.charts import BLUE, GREY, ORANGE

COLORS = {BOW: BLUE, GOODPUT: "#2a9d6f", PYTORCH: ORANGE}
OTHERS = ("#8f4fa8", "#b23a48", "#5b6577", "#b8a12e", "#4fa3a8", "#8b6b4a", "#d98cb3")
HEADROOM = 0.1  # accuracies this far below the target are not drawn


def draw(finals: Sequence[Training], target: float, path: Path) -> None:
    """Draw all finals: a line for every seed, that of the median time to the target in full colour.

    A contestant's second setting is dashed.
    """
    from matplotlib.ticker import PercentFormatter

    groups = by_choice(training for training in finals if training.looks)
    names = {choice.contestant for choice in groups}
    labels = labels_of(list(groups))
    firsts = {choice.contestant: choice for choice in reversed(groups)}
    others = iter(OTHERS)
    colors = {name: COLORS.get(name) or next(others) for name in CONTESTANTS if name in names}
    with picture(path, 7.6, 3.6) as figure:
        axes = figure.add_subplot()
        for choice, own in sorted(groups.items(), key=lambda group: typical(group[1]).looks[-1].seconds):
            middle = typical(own)
            for training in own:
                is_middle = training is middle
                axes.plot(
                    [look.seconds for look in training.looks],
                    [look.accuracy for look in training.looks],
                    color=colors[choice.contestant],
                    linestyle="-" if choice is firsts[choice.contestant] else "--",
                    linewidth=1.8 if is_middle else 0.8,
                    alpha=1.0 if is_middle else 0.3,
                    marker="o" if is_middle else "",
                    markersize=3,
                    label=labels[choice] if is_middle else None,
                    zorder=3 if is_middle else 2,
                )
        axes.axhline(target, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.set_ylim(bottom=target - HEADROOM)
        axes.set_xlim(left=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("accuracy on the test images")
        axes.grid(axis="y")
        if names:
            figure.legend(loc="outside right center", frameon=False)


def labels_of(choices: Sequence[Choice]) -> dict[Choice, str]:
    """Labels of the lines: contestants, with their settings if they have several."""
    names = [choice.contestant for choice in choices]
    return {
        choice: CONTESTANTS[choice.contestant].title
        + (f", batch {choice.batch_size}, lr {choice.lr:g}" if names.count(choice.contestant) > 1 else "")
        for choice in choices
    }


def typical(trainings: Sequence[Training]) -> Training:
    """Return the training with the median time; trainings that miss the target are the slowest."""
    own = sorted(trainings, key=lambda training: (training.time_s is None, training.looks[-1].seconds))
    return own[(len(own) - 1) // 2]
