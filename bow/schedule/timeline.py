"""Timelines: the common record of measured and simulated executions."""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bow.errors import TimelineError
from bow.terminal import aligned
from bow.values import given_path

_PROCESS = 1  # the one process of a trace; its threads are the places


@dataclass(frozen=True)
class Span:
    """One operator or task: its place, start and end."""

    name: str  # such as `aten.addmm.default` or `learning task`
    place: str  # such as `executor 0`
    start_ns: int  # since an arbitrary origin shared by all spans of a timeline
    end_ns: int
    category: str = ""  # for filtering, such as `forward`
    details: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, repr=False)
class Timeline:
    """Spans on places.

    Args:
        spans: in any order.

    Example:
        >>> print(Timeline([Span("addmm", "executor 0", 0, 3_000), Span("relu", "executor 1", 3_000, 4_000)]))
        2 spans on 2 places, 0.004 ms
        place       spans  busy ms  busy %  longest
        executor 0      1    0.003    75.0  addmm 0.003 ms
        executor 1      1    0.001    25.0  relu 0.001 ms
    """

    spans: tuple[Span, ...]

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        object.__setattr__(self, "spans", tuple(spans))

    @property
    def places(self) -> tuple[str, ...]:
        """The distinct places, sorted by name; numbers in names compare as numbers."""
        return tuple(sorted({span.place for span in self.spans}, key=_natural))

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return self._length_ns / 1e9

    def busy(self) -> dict[str, float]:
        """Return the fraction of the makespan in which something ran, by place."""
        return {place: self._busy_ns(place) / max(self._length_ns, 1) for place in self.places}

    def to_chrome(self) -> dict[str, Any]:
        """Return Chrome trace events, for `chrome://tracing` and https://ui.perfetto.dev."""
        start = self._start_ns
        threads = {place: number for number, place in enumerate(self.places)}
        names = [
            {"ph": "M", "name": name, "pid": _PROCESS, "tid": number, "args": {key: value}}
            for place, number in threads.items()
            for name, key, value in (("thread_name", "name", place), ("thread_sort_index", "sort_index", number))
        ]
        events = [
            {
                "ph": "X",
                "name": span.name,
                "cat": span.category,
                "pid": _PROCESS,
                "tid": threads[span.place],
                # The format's unit is microseconds; relative to the first start they keep every nanosecond.
                "ts": (span.start_ns - start) / 1000,
                "dur": span.duration_ns / 1000,
                "args": dict(span.details),
            }
            for span in self.spans
        ]
        return {"traceEvents": names + events, "displayTimeUnit": "ns", "otherData": {"start_ns": start}}

    def save(self, path: str | Path) -> None:
        """Write the trace events as JSON, gzip-compressed if the name ends in `.gz`."""
        path = given_path("the file of a timeline", path, TimelineError)
        text = json.dumps(self.to_chrome()).encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        except OSError as error:
            raise TimelineError(f"{path} cannot be written ({error.strerror or error}); give another file") from error

    @classmethod
    def load(cls, path: str | Path) -> "Timeline":
        """Load a file written by `save`.

        Raises:
            TimelineError: the file cannot be read, or is not a timeline.
        """
        path = given_path("the file of a timeline", path, TimelineError)
        try:
            raw = path.read_bytes()
            return cls(_spans(json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)))
        except OSError as error:  # includes gzip's own errors
            raise TimelineError(f"{path} cannot be read ({error.strerror or error}); give another file") from error
        except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
            raise TimelineError(
                f"{path} is not a timeline ({type(error).__name__}: {error}); give a file that Timeline.save wrote"
            ) from error

    def __repr__(self) -> str:
        return f"Timeline({self._summary})"

    def __str__(self) -> str:
        shares = self.busy()
        rows = [("place", "spans", "busy ms", "busy %", "longest")]
        for place, share in shares.items():
            here = [span for span in self.spans if span.place == place]
            longest = max(here, key=lambda span: span.duration_ns)
            busy = f"{self._busy_ns(place) / 1e6:.3f}"
            name = f"{longest.name} {longest.duration_ns / 1e6:.3f} ms"
            rows.append((place, str(len(here)), busy, f"{100 * share:.1f}", name))
        return "\n".join([self._summary, *aligned(rows, numbers=(1, 2, 3))])

    @property
    def _summary(self) -> str:
        return f"{len(self.spans)} spans on {len(self.places)} places, {self._length_ns / 1e6:.3f} ms"

    @property
    def _start_ns(self) -> int:
        return min((span.start_ns for span in self.spans), default=0)

    @property
    def _length_ns(self) -> int:
        return max((span.end_ns for span in self.spans), default=0) - self._start_ns

    def _busy_ns(self, place: str) -> int:
        """Return the nanoseconds in which something ran on a place; overlaps count once."""
        busy = 0
        until = self._start_ns
        for start, end in sorted((span.start_ns, span.end_ns) for span in self.spans if span.place == place):
            busy += max(0, end - max(start, until))
            until = max(until, end)
        return busy


def _spans(trace: Any) -> list[Span]:
    start = trace["otherData"]["start_ns"]
    events = trace["traceEvents"]
    places = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    spans = []
    for event in (event for event in events if event["ph"] == "X"):
        began = start + round(1000 * event["ts"])
        end = began + round(1000 * event["dur"])
        spans.append(Span(event["name"], places[event["tid"]], began, end, event["cat"], event["args"]))
    return spans


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Sort key under which `executor 10` follows `executor 9`."""
    return tuple(("", int(word)) if word.isdecimal() else (word, 0) for word in name.split())
