"""Pictures: strategies of Inception-v3 and NMT, and the best time over the time of the search."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.planner.problems import TITLES, cluster
from benchmarks.planner.structure import strategy_svg
from benchmarks.results import write_text
from bow.observe.charts import BLUE, ORANGE, STYLE
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.rules import RULES

COLOURS = {"delta": BLUE, "full": ORANGE}


def draw(
    values: Mapping[str, Any],
    found: Mapping[str, Sequence[Split]],
    graphs: Mapping[str, OperatorGraph],
    folder: Path,
) -> list[str]:
    """Draw all that there is; the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    devices = [device.name for device in cluster("P100", 4).devices]
    for network, splits in found.items():
        names.append(f"planner_{network}.svg")
        milliseconds = values["clusters"]["P100"][network]["4"]["strategies"]["found"]["step_ms"]
        title = f"{TITLES[network]} on four P100, {milliseconds:.1f} ms a step: the batch downwards, the rest across"
        write_text(folder / names[-1], strategy_svg(graphs[network], RULES, splits, devices, title) + "\n")
    if "curve" in values:
        names.append("planner_curve.svg")
        _draw_curves(values["curve"], folder / names[-1])
    return names


def _draw_curves(curves: Mapping[str, Any], path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.5, 2.8), layout="constrained")
        axes = figure.subplots()
        for algorithm, each in curves.items():
            seconds, times = zip(*each["curve"], strict=True)
            axes.step(seconds, times, where="post", color=COLOURS[algorithm], label=f"{algorithm} simulation")
        axes.set_xlabel("seconds of search")
        axes.set_ylabel("best step so far, ms")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})
