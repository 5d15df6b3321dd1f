"""Timelines of one step side by side: what was predicted and what was measured, in one file."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

from bow.schedule import Timeline


def save_timelines(path: str | Path, timelines: Mapping[str, Timeline]) -> None:
    """Write timelines as trace events, each as a process with its places as threads, all from the same moment on.

    `chrome://tracing` and https://ui.perfetto.dev show them below each other.

    Example:
        >>> from bow.schedule import Span
        >>> path = getfixture("tmp_path") / "both.json"
        >>> timelines = {name: Timeline([Span("conv", "device 0", 5, 9)]) for name in ("predicted", "measured")}
        >>> save_timelines(path, timelines)
        >>> sorted({event["pid"] for event in json.loads(path.read_text())["traceEvents"]})
        [1, 2]
    """
    events = []
    for number, (name, timeline) in enumerate(timelines.items(), 1):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}})
        events += [{**event, "pid": number} for event in timeline.to_chrome()["traceEvents"]]
    path = Path(path)
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
