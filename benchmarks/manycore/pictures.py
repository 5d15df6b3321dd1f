"""Pictures of the simulations: Figure 6, Figure 4, and timelines of LSTM cells."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import paper, write_text
from benchmarks.harness.pictures import picture
from benchmarks.manycore.claims import best_row
from benchmarks.manycore.diagonal import CRITICAL, FIRST, RANDOM
from benchmarks.manycore.jobs import Cells, Counts, Done
from bow.models import NETWORKS
from bow.observe.charts import BLUE, GREY, ORANGE
from bow.schedule.picture import timeline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREEN = "#2a9d6f"
COLORS = (GREEN, BLUE, ORANGE)

CELL_FILES = {CRITICAL: "critical_path", FIRST: "first_come", RANDOM: "any_ready"}


def draw_found(done: Sequence[Done], graphi: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw_speedups(graphi, folder / "manycore_figure_6.png")
    draw_counts({each.network: each.counts for each in done if each.counts}, folder / "manycore_figure_4.png")
    for each in done:
        if each.cells:
            draw_cells(each.cells, best_row(each.found["executors"])["executors"], each.size, folder)


def draw_cells(cells: Cells, executors: int, size: str, folder: Path) -> None:
    """Draw a timeline of the cells for each scheduler, with this number of executors."""
    for (count, scheduler), timeline in cells.items():
        if count == executors:
            title = f"LSTM, {size}, forward pass on {executors} executors: {scheduler}; a colour for each step in time"
            name = f"manycore_cells_{CELL_FILES[scheduler]}.svg"
            write_text(folder / name, timeline_svg(timeline, title) + "\n")


def draw_speedups(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw a panel for each network: speed-up against the number of executors, a line for each size; the paper's range
    of the best ones is shaded.
    """
    with picture(path, 9.0, 2.6, dpi=130) as figure:
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, (network, sizes) in zip(panels, found.items(), strict=True):
            for color, (size, own) in zip(COLORS, sizes.items(), strict=False):
                rows = own["executors"]
                points = [row["executors"] for row in rows], [row["speedup"] for row in rows]
                axes.plot(*points, color=color, marker="o", markersize=3, label=size)
            _finish_speedups(axes, network)
        panels[0].set_ylabel("speed-up over 1 executor x 64 threads")
        panels[-1].legend(frameon=False, loc="upper right")


def _finish_speedups(axes: "Axes", network: str) -> None:
    low, high = paper("manycore")["best_speedup"][network]
    axes.axhspan(low - 0.02, high + 0.02, color=GREY, alpha=0.25, linewidth=0)
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2, 4, 8, 16, 32], ["2", "4", "8", "16", "32"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("executors")
    axes.set_title(NETWORKS[network].title)
    axes.grid(axis="y")


def draw_counts(counts: Mapping[str, Counts], path: Path) -> None:
    """Draw a panel for each network and strategy: number of running operators after each event, and their mean."""
    plans = list(next(iter(counts.values())))
    with picture(path, 9.0, 1.9 * len(plans), dpi=130) as figure:
        panels = figure.subplots(len(plans), len(counts), squeeze=False)
        for row, plan in zip(panels, plans, strict=True):
            for axes, (network, by_plan) in zip(row, counts.items(), strict=True):
                events = by_plan[plan]
                axes.plot(events, color=BLUE, linewidth=0.6, drawstyle="steps-post")
                mean = sum(events) / len(events)
                axes.axhline(mean, color=ORANGE, linewidth=1.2, label=f"mean {mean:.2f}")
                axes.set_title(f"{NETWORKS[network].title}, strategies {plan}")
                axes.set_ylim(bottom=0)
                axes.legend(frameon=False, loc="upper right")
        for axes in panels[-1]:
            axes.set_xlabel("events of a step")
        for line in panels:
            line[0].set_ylabel("operators")
