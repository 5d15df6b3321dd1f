"""SVG pictures of timelines, helpers for all SVG pictures, and concurrency of operators over time."""

import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape

from bow.schedule.timeline import Span, Timeline

WIDTH = 1200  # of every picture, in pixels

ROW, GAP, LEFT, TOP = 22, 6, 150, 34
NARROW = 60  # minimum width in pixels of a span that is labelled with its name


def timeline_svg(timeline: Timeline, title: str = "") -> str:
    """Render a timeline: a row per place, a box per span, with name and times as its tooltip."""
    places = timeline.places
    start = min((span.start_ns for span in timeline.spans), default=0)
    scale = (WIDTH - LEFT - 10) / max(timeline.makespan * 1e9, 1)
    height = TOP + len(places) * (ROW + GAP) + 24
    rows = {place: TOP + number * (ROW + GAP) for number, place in enumerate(places)}
    parts = [
        *(f'<text x="10" y="{y + 15}">{escape(place)}</text>' for place, y in rows.items()),
        *(_box(span, rows[span.place], start, scale) for span in timeline.spans),
        *_axis(timeline.makespan, height, scale),
    ]
    return svg(parts, height, title)


def co_running(timeline: Timeline) -> list[tuple[int, int]]:
    """Count the running operators at every start and end, each once (Liu et al., 2019, Figure 4)."""
    once = {(span.details.get("operator", number), span.start_ns): span for number, span in enumerate(timeline.spans)}
    start = min((span.start_ns for span in timeline.spans), default=0)
    changes = Counter(span.start_ns - start for span in once.values())
    changes.subtract(span.end_ns - start for span in once.values())
    moments = sorted(changes)
    return list(zip(moments, itertools.accumulate(changes[moment] for moment in moments), strict=True))


def mean_co_running(timeline: Timeline) -> float:
    """Return the mean number of running operators, over the time in which any runs."""
    events = co_running(timeline)
    stretches = [(later - now, count) for (now, count), (later, _) in itertools.pairwise(events)]
    busy = sum(length for length, count in stretches if count)
    return sum(length * count for length, count in stretches) / busy if busy else 0.0


def co_running_by_part(timeline: Timeline, parts: int = 10) -> list[float]:
    """Return the mean number of running operators in each of several equal parts of the time."""
    events = co_running(timeline)
    length = max((moment for moment, _ in events), default=0) / parts
    found = [0.0] * parts
    for (now, count), (later, _) in itertools.pairwise(events):
        for part in range(parts):
            inside = min(later, (part + 1) * length) - max(now, part * length)
            found[part] += count * max(0.0, inside) / length
    return found


def side_by_side(**timelines: Timeline) -> Timeline:
    """Combine timelines, each shifted to start at 0, with its name as a prefix of its places."""
    spans: list[Span] = []
    for name, timeline in timelines.items():
        start = min((span.start_ns for span in timeline.spans), default=0)
        for span in timeline.spans:
            began, ended = span.start_ns - start, span.end_ns - start
            spans.append(replace(span, place=f"{name} {span.place}", start_ns=began, end_ns=ended))
    return Timeline(spans)


def svg(parts: Iterable[str], height: float, title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="18" font-size="13">{escape(title)}</text>',
    )
    return "\n".join([*head, *parts, "</svg>"])


def _box(span: Span, y: int, start: int, scale: float) -> str:
    x, width = LEFT + (span.start_ns - start) * scale, max(span.duration_ns * scale, 0.5)
    told = f"{span.name}, {(span.start_ns - start) / 1e6:.3f} ms to {(span.end_ns - start) / 1e6:.3f} ms"
    told += f", {span.details['module']}" if "module" in span.details else ""
    hue = zlib.crc32(span.name.encode()) % 360  # depends on the name only
    box = (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="hsl({hue}, 60%, 72%)" '
        f'stroke="white" stroke-width="0.4"><title>{escape(told)}</title></rect>'
    )
    if width < NARROW:
        return box
    shown = span.name.removeprefix("aten.").removesuffix(".default")[: int(width / 7)]
    return f'{box}<text x="{x + 3:.1f}" y="{y + 15}" pointer-events="none">{escape(shown)}</text>'


def _axis(seconds: float, height: int, scale: float) -> Sequence[str]:
    ticks = 6
    marks = [seconds * 1e9 * tick / (ticks - 1) for tick in range(ticks)]
    anchors = ["start", *["middle"] * (ticks - 2), "end"]  # the last label ends at the picture's edge
    return [
        f'<text x="{LEFT + mark * scale:.0f}" y="{height - 8}" text-anchor="{anchor}">{mark / 1e6:.2f} ms</text>'
        for mark, anchor in zip(marks, anchors, strict=True)
    ]
