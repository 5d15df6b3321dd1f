"""The picture of `python -m benchmarks predicted`: predicted against measured times, as in the paper's Figure 11."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.predicted_report import LARGEST
from bow.observe.charts import STYLE

COLORS = ("#2563a8", "#d9822b", "#2a9d6f", "#8f4fa8", "#b23a48", "#5b6577")
MARKERS = "os^Dvx"
ROOM = 1.25  # The axes go so many times beyond the points


def draw(values: Mapping[str, Any], path: Path) -> None:
    """A point for each strategy; between the dashed lines the error is no larger than it may be.

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, Figure 11.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 5.0), layout="constrained", dpi=160)
        axes = figure.subplots()
        times: list[float] = []
        for number, network in enumerate(values["networks"].values()):
            measured = [row["measured_ms"]["median"] for row in network["strategies"]]
            predicted = [row["predicted_ms"] for row in network["strategies"]]
            times += measured + predicted
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            axes.plot(measured, predicted, marker, color=color, markersize=4.5, label=network["title"])
        ends = [min(times) / ROOM, max(times) * ROOM]
        axes.plot(ends, ends, color=COLORS[-1], linewidth=0.8)
        for factor in (1 - LARGEST, 1 + LARGEST):
            axes.plot(ends, [factor * end for end in ends], color=COLORS[-1], linewidth=0.8, linestyle="--")
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="measured step, milliseconds", ylabel="predicted step, milliseconds")
        axes.legend(frameon=False)
        figure.savefig(path)
