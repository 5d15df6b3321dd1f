"""What `python -m benchmarks gpu` found of operators on several streams, as a section of its page."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.workloads import WORKLOADS
from benchmarks.harness import Table

Values = Mapping[str, Any]


def scheduling_section(parts: Mapping[str, Values]) -> Iterator[str]:
    """A table for every network."""
    groups = [found for name, found in parts.items() if name.startswith("scheduling") and found.get("schedules")]
    if not groups:
        return
    yield "## Operators of one learner on several streams, critical path first (Tang et al. 2018)\n"
    yield (
        "One stream, and critical path: the operators of the step graph as one CUDA graph, whose branches are streams. "
        "graph: bow's engine, its learners each on one stream, or each on several by the fastest of the schedules. "
        "Predicted: from the profile of every operator alone.\n"
    )
    for found in groups:
        facts = found["profile"]
        yield f"### {WORKLOADS[found['model']].title}, batch {found['batch_size']}\n"
        yield (
            f"{facts['kernels']} kernels take {facts['operators_us']:,.0f} us one after another, the critical path "
            f"{facts['critical_path_us']:,.0f} us: parallelism {facts['parallelism']:.2f}.\n"
        )
        yield _table(found)


def _table(found: Values) -> str:
    predicted, gains = found["profile"]["predicted_us"], found["gains"]
    rows = {row["name"]: row for row in (*found["schedules"], *found["contestants"])}
    lines = [
        [
            name,
            str(row["learners"] or 1),
            spread_text(row["samples_per_s"], 0),
            spread_text(row["round_ms"], 3),
            spread_text(gains[name], 2) if name in gains else "",
            f"{predicted[name] / 1e3:.3f}" if name in predicted else "",
        ]
        for name, row in rows.items()
    ]
    columns = ["contestant", "learners", "samples/s", "ms a round", "to one stream", "predicted ms"]
    return Table(columns, lines, left=["contestant"]).markdown()


def spread_text(values: Values, digits: int) -> str:
    """A median, and between which values it lies."""
    median, low, high = (f"{values[name]:,.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low}-{high})"
