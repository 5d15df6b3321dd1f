"""Pictures of timelines, and what they show in numbers."""

import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.schedule import Span, Timeline
from bow.schedule.picture import (
    LEFT,
    WIDTH,
    co_running,
    co_running_by_part,
    mean_co_running,
    side_by_side,
    timeline_svg,
)

SVG = "{http://www.w3.org/2000/svg}"

SPANS = st.builds(
    lambda name, place, start, length: Span(name, place, start, start + length),
    st.sampled_from(["aten.mm.default", "a <b> & 'c'", ""]),
    st.sampled_from(["core 0", "core 1", "core 10", "<places> & co"]),
    st.integers(0, 10**15),
    st.integers(0, 10**9),
)


def boxes(picture: str) -> list[ElementTree.Element]:
    """The boxes of spans; the first rectangle is the background."""
    return ElementTree.fromstring(picture).findall(f"{SVG}rect")[1:]


@given(st.lists(SPANS, max_size=8), st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=8))
def test_every_span_has_a_box_in_its_row_and_inside_the_picture(spans: list[Span], title: str) -> None:
    timeline = Timeline(spans)
    picture = timeline_svg(timeline, title)
    root = ElementTree.fromstring(picture)
    height = int(root.attrib["height"])
    found = boxes(picture)
    assert len(found) == len(spans)
    rows: dict[str, set[str]] = {}
    for span, box in zip(timeline.spans, found, strict=True):
        x, width = float(box.attrib["x"]), float(box.attrib["width"])
        assert x >= LEFT - 0.1
        assert x + width <= WIDTH
        assert 0 < float(box.attrib["y"]) + float(box.attrib["height"]) <= height
        rows.setdefault(span.place, set()).add(box.attrib["y"])
    assert all(len(own) == 1 for own in rows.values())
    assert len(set().union(*rows.values())) == len(rows)


def test_boxes_are_as_long_as_spans_and_tell_of_them() -> None:
    spans = [
        Span("aten.mm.default", "core 0", 1_000_000, 4_000_000, details={"module": "fc"}),
        Span("x", "core 0", 0, 500),
    ]
    long, short = boxes(timeline_svg(Timeline(spans)))
    assert float(long.attrib["width"]) == pytest.approx((WIDTH - LEFT - 10) * 3 / 4, abs=0.1)
    assert float(short.attrib["width"]) == 0.5  # what is too short to be seen
    (told,) = long.findall(f"{SVG}title")
    assert told.text == "aten.mm.default, 1.000 ms to 4.000 ms, fc"


def test_the_last_time_on_the_axis_ends_with_the_picture() -> None:
    picture = ElementTree.fromstring(timeline_svg(Timeline([Span("x", "core 0", 0, 3_000_000)])))
    last = picture.findall(f"{SVG}text")[-1]
    assert (last.text, last.attrib["text-anchor"]) == ("3.00 ms", "end")
    assert int(last.attrib["x"]) <= WIDTH


def test_parts_of_a_step_have_the_operators_that_run_in_them() -> None:
    spans = [Span("a", "core 0", 100, 104), Span("b", "core 1", 102, 108)]
    assert co_running_by_part(Timeline(spans), parts=4) == [1.0, 2.0, 1.0, 1.0]
    assert co_running_by_part(Timeline(spans), parts=1) == [1.25]
    assert co_running_by_part(Timeline(), parts=2) == [0.0, 0.0]


def test_names_are_written_where_there_is_room() -> None:
    picture = timeline_svg(Timeline([Span("aten.mm.default", "core 0", 0, 9_000), Span("relu", "core 1", 0, 90)]))
    texts = [text.text for text in ElementTree.fromstring(picture).findall(f"{SVG}text")]
    assert "mm" in texts
    assert "relu" not in texts


def test_a_name_has_the_same_colour_in_every_picture() -> None:
    one, two = (Timeline([Span(name, "core 0", 0, 9)]) for name in ("mm", "relu"))
    colours = [boxes(timeline_svg(timeline))[0].attrib["fill"] for timeline in (one, two, one)]
    assert colours[0] == colours[2] != colours[1]


def test_the_axis_ends_with_the_timeline() -> None:
    picture = timeline_svg(Timeline([Span("mm", "core 0", 7_000_000, 9_000_000)]), title="a step")
    texts = [text.text for text in ElementTree.fromstring(picture).findall(f"{SVG}text")]
    assert texts[-6:] == ["0.00 ms", "0.40 ms", "0.80 ms", "1.20 ms", "1.60 ms", "2.00 ms"]
    assert texts[0] == "a step"


def test_an_empty_timeline_is_an_empty_picture() -> None:
    assert boxes(timeline_svg(Timeline())) == []
    assert co_running(Timeline()) == []
    assert mean_co_running(Timeline()) == 0.0


@given(st.lists(SPANS, max_size=8))
def test_the_number_that_runs_is_that_of_the_spans_at_that_moment(spans: list[Span]) -> None:
    start = min((span.start_ns for span in spans), default=0)
    events = co_running(Timeline(spans))
    assert [moment for moment, _ in events] == sorted({t - start for s in spans for t in (s.start_ns, s.end_ns)})
    for moment, count in events:
        assert count == sum(span.start_ns - start <= moment < span.end_ns - start for span in spans)
    busy = sum(later - now for (now, count), (later, _) in itertools.pairwise(events) if count)
    if busy:
        assert mean_co_running(Timeline(spans)) == pytest.approx(sum(span.duration_ns for span in spans) / busy)


def test_an_operator_that_holds_several_cores_counts_once() -> None:
    held = [Span("conv", f"core {core}", 0, 4, details={"operator": 7}) for core in range(3)]
    timeline = Timeline([*held, Span("relu", "core 3", 2, 4, details={"operator": 8})])
    assert co_running(timeline) == [(0, 1), (2, 2), (4, 0)]
    assert mean_co_running(timeline) == 1.5


def test_a_pause_in_which_nothing_runs_is_no_part_of_the_mean() -> None:
    assert mean_co_running(Timeline([Span("a", "core 0", 0, 2), Span("b", "core 0", 98, 100)])) == 1.0


def test_timelines_stand_side_by_side_from_their_own_beginnings() -> None:
    predicted = Timeline([Span("mm", "core 0", 5, 9, "forward", {"operator": 1})])
    measured = Timeline([Span("mm", "executor 0", 1_000, 1_006), Span("relu", "executor 1", 1_002, 1_003)])
    made = side_by_side(simulated=predicted, measured=measured)
    assert made.spans == (
        Span("mm", "simulated core 0", 0, 4, "forward", {"operator": 1}),
        Span("mm", "measured executor 0", 0, 6),
        Span("relu", "measured executor 1", 2, 3),
    )
    assert side_by_side(nothing=Timeline()).spans == ()
