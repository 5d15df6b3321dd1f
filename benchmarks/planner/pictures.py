"""How every operator of a strategy is split (Figures 13 and 14), and the best time over the time of the search."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness import write_text
from benchmarks.harness.pictures import picture
from benchmarks.placement_picture import COLOURS, legend
from benchmarks.planner.problems import TITLES, cluster
from bow.observe.charts import BLUE, ORANGE
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.partition import Split
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rules
from bow.schedule.picture import WIDTH, svg

CURVES = {"delta": BLUE, "full": ORANGE}


def draw_strategies(
    values: Mapping[str, Any], found: Mapping[str, Sequence[Split]], graphs: Mapping[str, OperatorGraph], folder: Path
) -> None:
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
            axes.step(seconds, times, where="post", color=CURVES[algorithm], label=f"{algorithm} simulation")
        axes.set_xlabel("seconds of search")
        axes.set_ylabel("best step so far, ms")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)


LEFT, TOP = 170, 56
ROW, GAP = 30, 6

# Kinds of operators without weights that are drawn; normalisation follows its convolution and is left out
SHOWN = frozenset({"max_pool2d", "avg_pool2d", "concat"})

HIDDEN = frozenset({"batch_norm"})


def strategy_svg(
    graph: OperatorGraph, rules: Rules, splits: Sequence[Split], devices: Sequence[str], title: str
) -> str:
    """A strategy as SVG: a row for each layer or module, a box for each operator, a colour for each device.

    Within a box, the vertical direction is the batch, and the horizontal one everything else that is split. A box
    tells its operator and degrees when pointed at. The steps of an unrolled layer stand side by side.

    References:
        Jia, Zaharia, Aiken, 2018, figures 13 and 14.
    """
    rows = _rows(graph)
    columns = max(map(len, rows.values()), default=1)
    box = min((WIDTH - LEFT - 10) / columns, 4 * ROW)
    height = TOP + len(rows) * (ROW + GAP) + 10
    parts = [*legend(devices, [_colour(device) for device in range(len(devices))], LEFT)]
    for number, (name, members) in enumerate(rows.items()):
        y = TOP + number * (ROW + GAP)
        parts.append(f'<text x="10" y="{y + ROW / 2 + 4:.0f}">{escape(name)}</text>')
        for column, operator in enumerate(members):
            x, width = LEFT + column * box, max(box - GAP * (box > 3 * GAP), 1)
            parts.extend(_box(graph, rules, graph.operators[operator], splits[operator], (x, y, width)))
    return svg(parts, height, title)


def _box(
    graph: OperatorGraph, rules: Rules, operator: PlanOperator, split: Split, at: tuple[float, float, float]
) -> Iterator[str]:
    """A group with a rectangle for each tile."""
    x, y, width = at
    dimensions = rules.dimensions(operator, graph)
    down = next((degree for each, degree in zip(dimensions, split.degrees, strict=True) if each.kind == "S"), 1)
    across = split.num_tiles // down
    told = ", ".join(
        f"{each.name} {degree}" for each, degree in zip(dimensions, split.degrees, strict=True) if degree > 1
    )
    yield f"<g><title>{escape(operator.name)}: {escape(told or 'whole')}</title>"
    for tile, device in enumerate(split.devices):
        row, column = divmod(tile, across)
        yield (
            f'<rect x="{x + column * width / across:.1f}" y="{y + row * ROW / down:.1f}" '
            f'width="{width / across:.1f}" height="{ROW / down:.1f}" fill="{_colour(device)}"/>'
        )
    yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="none" stroke="#555"/></g>'


def _rows(graph: OperatorGraph) -> Mapping[str, list[int]]:
    """By layer that is unrolled, or else by module: the operators that are drawn."""
    counts: dict[str, int] = {}
    for operator in graph.operators:
        counts[operator.layer] = counts.get(operator.layer, 0) + 1
    rows: dict[str, list[int]] = {}
    for number, operator in enumerate(graph.operators):
        if operator.kind in HIDDEN or not (operator.weights or operator.kind in SHOWN):
            continue
        is_unrolled = counts[operator.layer] > 1
        rows.setdefault(operator.layer if is_unrolled else _module(operator.name), []).append(number)
    return {name: members for name, members in rows.items() if len(members) > 1 or graph.operators[members[0]].weights}


def _module(name: str) -> str:
    """Of `modules35.0.branches.1.conv` the module `modules35.0`; of `stem.0.conv` all of `stem`."""
    parts = name.partition("@")[0].split(".")
    if len(parts) > 2 and parts[0].startswith("modules"):
        return ".".join(parts[:2])
    return parts[0] if len(parts) > 1 and parts[0] == "stem" else ".".join(parts[:2])


def _colour(device: int) -> str:
    return COLOURS[device % len(COLOURS)]
