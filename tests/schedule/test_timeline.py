import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import TimelineError
from bow.schedule import Span, Timeline

SPANS = st.lists(
    st.builds(
        lambda name, place, start, length, category, details: Span(
            name, place, start, start + length, category, details
        ),
        st.sampled_from(["aten.mm", "relu"]),
        st.sampled_from(["executor 0", "executor 2", "executor 10"]),
        st.integers(0, 2**62),
        st.integers(0, 10**12),
        st.sampled_from(["", "forward"]),
        st.dictionaries(st.sampled_from(["module", "learner"]), st.one_of(st.integers(0, 9), st.just("fc"))),
    ),
    max_size=8,
)

TWO = Timeline(
    [
        Span("mm", "executor 0", 1_000, 4_000, "forward", {"module": "fc"}),
        Span("relu", "executor 10", 4_000, 5_000),
        Span("mm", "executor 9", 2_000, 3_000),
        Span("overlapping", "executor 9", 2_500, 3_500),
    ]
)


def test_makespan_and_busy_shares() -> None:
    assert TWO.makespan == 4e-6
    assert TWO.busy() == {"executor 0": 0.75, "executor 9": 0.375, "executor 10": 0.25}
    assert list(TWO.busy()) == ["executor 0", "executor 9", "executor 10"]


def test_an_empty_timeline_has_no_length() -> None:
    empty = Timeline()
    assert (empty.makespan, empty.busy()) == (0, {})
    assert str(empty).startswith("0 spans on 0 places")


def test_the_table_has_a_line_per_place() -> None:
    summary, header, *lines = str(TWO).splitlines()
    assert summary == "4 spans on 3 places, 0.004 ms"
    assert header.split()[:2] == ["place", "spans"]
    assert [line[:11].strip() for line in lines] == ["executor 0", "executor 9", "executor 10"]
    assert lines[1].split()[2:5] == ["2", "0.002", "37.5"]
    assert repr(TWO) == f"Timeline({summary})"


def test_trace_events_are_what_perfetto_reads() -> None:
    trace = TWO.to_chrome()
    threads = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert list(threads.values()) == ["executor 0", "executor 9", "executor 10"]
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert spans[0] == {"ph": "X", "name": "mm", "cat": "forward", "pid": 1, "tid": 0, "ts": 0.0, "dur": 3.0,
                        "args": {"module": "fc"}}  # fmt: skip
    assert threads[spans[1]["tid"]] == "executor 10"
    assert {event["pid"] for event in trace["traceEvents"]} == {1}


@given(spans=SPANS, name=st.sampled_from(["trace.json", "trace.json.gz"]))
def test_saving_and_loading_keeps_every_nanosecond(tmp_path_factory, spans: list[Span], name: str) -> None:
    start = min((span.start_ns for span in spans), default=0)
    spans = [
        Span(s.name, s.place, min(s.start_ns, start + 10**14), min(s.start_ns, start + 10**14) + s.duration_ns,
             s.category, s.details) for s in spans
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("timeline") / name
    Timeline(spans).save(path)
    assert Timeline.load(path).spans == tuple(spans)
    raw = path.read_bytes()
    json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("broken.json", b"{", "is not a timeline"),
        ("other.json", b'{"traceEvents": []}', "is not a timeline"),
        ("list.json", b"[]", "is not a timeline"),
        ("binary.json", b"\xff\xfe\xfa", "is not a timeline"),
        ("broken.gz", b"no gzip", "cannot be read"),
        ("short.gz", gzip.compress(b"{}", mtime=0)[:-6], "is not a timeline"),
    ],
)
def test_what_is_no_timeline_is_refused_in_one_sentence(tmp_path: Path, name: str, content: bytes, match: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TimelineError, match=match):
        Timeline.load(tmp_path / name)


def test_a_missing_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TimelineError, match=r"none\.json cannot be read \(No such file"):
        Timeline.load(tmp_path / "none.json")
