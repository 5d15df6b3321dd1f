"""Pictures: strategies of Inception-v3 and NMT, and the best time over the time of the search."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import write_text
from benchmarks.harness.pictures import picture
from benchmarks.planner.problems import TITLES, cluster
from benchmarks.planner.structure import strategy_svg
from bow.observe.charts import BLUE, ORANGE
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.rules import RULES

COLOURS = {"delta": BLUE, "full": ORANGE}


def draw_strategies(
    values: Mapping[str, Any], found: Mapping[str, Sequence[Split]], graphs: Mapping[str, OperatorGraph], folder: Path
) -> None:
    """A picture of each strategy."""
    devices = [device.name for device in cluster("P100", 4).devices]
    for network, splits in found.items():
        milliseconds = values["clusters"]["P100"][network]["4"]["strategies"]["found"]["step_ms"]
        title = f"{TITLES[network]} on four P100, {milliseconds:.1f} ms a step: the batch downwards, the rest across"
        svg = strategy_svg(graphs[network], RULES, splits, devices, title)
        write_text(folder / f"planner_{network}.svg", svg + "\n")


def draw_curves(curves: Mapping[str, Any] | None, path: Path) -> None:
    """The best step over the time of the search."""
    if curves is None:
        return
    with picture(path, 5.5, 2.8) as figure:
        axes = figure.subplots()
        for algorithm, each in curves.items():
            seconds, times = zip(*each["curve"], strict=True)
            axes.step(seconds, times, where="post", color=COLOURS[algorithm], label=f"{algorithm} simulation")
        axes.set_xlabel("seconds of search")
        axes.set_ylabel("best step so far, ms")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
