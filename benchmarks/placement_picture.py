"""Pictures of placements."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from bow.planning.placement.groups import Groups
from bow.schedule.picture import WIDTH, svg

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
"""Colours of devices, cyclic."""

LEFT, TOP, GAP = 190, 56, 2
ROW = 18
"""Height of a row, in pixels."""

TRANSPARENT = "none"


def legend(names: Sequence[str], colours: Sequence[str], left: float) -> Iterator[str]:
    """Names in a row below the title, each with its colour."""
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        x = left + 110 * number
        yield f'<rect x="{x}" y="28" width="14" height="14" fill="{colour}" stroke="#777"/>'
        yield f'<text x="{x + 20}" y="39">{escape(name)}</text>'


def placement_svg(
    groups: Groups,
    devices: Sequence[int],
    names: Sequence[str],
    *,
    processors: Sequence[int] = (),
    title: str = "",
) -> str:
    """Draw a placement as SVG: a row for each layer, with a box for each group, in execution order.

    Every accelerator has a colour, and processors have none, as in the paper. Tooltips of boxes name the group and its
    device. The steps of an unrolled network are columns: a group is drawn below those of the same step in the other
    layers.

    Example:
        >>> from bow.planning.placement.groups import Group
        >>> from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
        >>> chain = tuple(PlanOperator(f"cell{n}", "lstm_cell", (n,), (n + 1,)) for n in range(2))
        >>> graph = OperatorGraph(chain, {n: TensorShape((1,)) for n in range(3)}, (0,), {}, 2)
        >>> cells = Groups(graph, tuple(Group(f"cell{n}", "lstm_cell", (n,), "cell") for n in range(2)))
        >>> picture = placement_svg(cells, (0, 1), ("cpu", "gpu"), processors=(0,), title="two cells")
        >>> picture.count("<title>"), "cell1 on gpu" in picture
        (2, True)

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, figures 4 and 5.
    """
    colours = _colours(len(names), processors)
    rows = _rows(groups)
    columns = max((len(row) for row in rows.values()), default=1)
    box = (WIDTH - LEFT - 10) / columns
    height = TOP + len(rows) * (ROW + GAP) + 10
    parts = [*legend(names, colours, LEFT)]
    for number, (name, row) in enumerate(rows.items()):
        y = TOP + number * (ROW + GAP)
        parts.append(f'<text x="10" y="{y + ROW - 5}">{escape(name)}</text>')
        for column, group in enumerate(row):
            told = escape(f"{groups.groups[group].name} on {names[devices[group]]}")
            parts.append(
                f'<rect x="{LEFT + column * box:.1f}" y="{y}" width="{max(box - GAP, 1):.1f}" height="{ROW}" '
                f'fill="{colours[devices[group]]}" stroke="#777" stroke-width="0.6"><title>{told}</title></rect>'
            )
    return svg(parts, height, title)


def _rows(groups: Groups) -> Mapping[str, list[int]]:
    """By row: its groups. Layers with one group each share a row with the other layers of the model's module."""
    layers = defaultdict[str, list[int]](list)
    for number, group in enumerate(groups.groups):
        layers[group.layer or group.name].append(number)
    rows = defaultdict[str, list[int]](list)
    for layer, members in layers.items():
        is_unrolled = len(members) > 1
        name = layer if is_unrolled else _module(groups.groups[members[0]].name)
        rows[name].extend(members)
    return rows


def _module(name: str) -> str:
    """Return the module of a name: `modules35.0` for `modules35.0.1`, and `stem` for `stem.0.conv`."""
    parts = name.partition("@")[0].split(".")
    if parts[-1].isdigit() and len(parts) > 1:
        return ".".join(parts[:-1])
    return parts[0]


def _colours(count: int, processors: Sequence[int]) -> list[str]:
    accelerators = [device for device in range(count) if device not in processors]
    by_device = {device: COLOURS[number % len(COLOURS)] for number, device in enumerate(accelerators)}
    return [by_device.get(device, TRANSPARENT) for device in range(count)]
