"""The picture `peers.png`: accuracy against seconds of training."""

from collections.abc import Sequence
from pathlib import Path

from bow.bench.peers.contestants import BOW, CONTESTANTS, GOODPUT, PYTORCH
from bow.bench.peers.training import Training
from bow.observe.charts import BLUE, GREY, ORANGE, STYLE

COLORS = {BOW: BLUE, GOODPUT: "#2a9d6f", PYTORCH: ORANGE}
OTHERS = ("#8f4fa8", "#b23a48", "#5b6577", "#b8a12e", "#4fa3a8", "#8b6b4a", "#d98cb3")
HEADROOM = 0.1
"""Of accuracies, what is this far below the target is not drawn."""


def draw(finals: Sequence[Training], target: float, path: Path) -> None:
    """Draw all finals: a line for every seed, the one of the median time to the target in full colour."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    names = list(dict.fromkeys(training.choice.contestant for training in finals if training.looks))
    others = iter(OTHERS)
    colors = {name: COLORS.get(name) or next(others) for name in CONTESTANTS if name in names}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.6), layout="constrained", dpi=160)
        axes = figure.add_subplot()
        for name in sorted(names, key=lambda name: typical(finals, name).looks[-1].seconds):
            middle = typical(finals, name)
            for training in finals:
                if training.choice.contestant == name and training.looks:
                    is_middle = training is middle
                    axes.plot(
                        [look.seconds for look in training.looks],
                        [look.accuracy for look in training.looks],
                        color=colors[name],
                        linewidth=1.8 if is_middle else 0.8,
                        alpha=1.0 if is_middle else 0.3,
                        marker="o" if is_middle else "",
                        markersize=3,
                        label=CONTESTANTS[name].title if is_middle else None,
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
        figure.savefig(path)


def typical(finals: Sequence[Training], name: str) -> Training:
    """A contestant's training with the median time; those that do not reach the target are the slowest."""
    own = [training for training in finals if training.choice.contestant == name and training.looks]
    own.sort(key=lambda training: (training.time_s is None, training.looks[-1].seconds))
    return own[(len(own) - 1) // 2]
