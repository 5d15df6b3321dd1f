"""Our counterparts of what the paper states, from the values of a figure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.figures.convergence import median_to_target
from benchmarks.figures.entries import Row, matches
from benchmarks.figures.paper import CHARACTERISTICS, STATEMENTS, Pick, Question, Range, Ratio
from benchmarks.measure import Spread, ratios
from benchmarks.results import Table

ABSENT = "not measured in this form"
NO_COUNTERPART = ""


def comparison(name: str, values: Mapping[str, Any]) -> Table:
    """A row for each statement of the paper about a figure, ours beside it."""
    rows = [(statement.what, statement.value, answer(statement.ours, values)) for statement in STATEMENTS[name]]
    return Table(["", "paper", "here"], rows, left=["", "paper", "here"])


def characteristics_table(values: Mapping[str, Any]) -> Table:
    """Table 5.1: what the paper has, ours beside it."""
    paper = {(entry.model, entry.data): entry for entry in CHARACTERISTICS}
    rows = []
    for row in values["rows"]:
        entry = paper.get((row["model"], row["data"]))
        theirs = ("", "", "")
        if entry is not None:
            theirs = f"{entry.data_mb:,.2f}", f"{entry.model_mb:g}", f"{entry.operators:,}"
        ours = f"{row['data_mb']:,.2f}", f"{row['model_mb']:.3g}", f"{row['operators']:,}"
        pairs = (text for pair in zip(theirs, ours, strict=True) for text in pair)
        rows.append((row["model"], row["data"], *pairs, f"{row['parameters']:,}"))
    both = [f"{what}, {who}" for what in ("data set (MB)", "model (MB)", "operators") for who in ("paper", "here")]
    return Table(["model", "data set", *both, "parameters, here"], rows, left=["model", "data set"])


def answer(question: Question | None, values: Mapping[str, Any]) -> str:
    """Ours, in words."""
    if question is None:
        return NO_COUNTERPART
    if isinstance(question, Ratio):
        return _ratio(question, values)
    if isinstance(question, Range):
        return _range(question, values["rows"])
    if question == "best batch size":
        return f"{values['best_batch_size']:,}"
    return _batch_sizes(values["rows"], reached=question == "reached")


def _batch_sizes(rows: Sequence[Row], reached: bool) -> str:
    """The batch sizes with which trainings reached the target, or did not; in how many seeds, where it was not all."""
    found = []
    for batch_size in dict.fromkeys(row["batch_size"] for row in rows):
        own = [(row["epochs"] is not None) == reached for row in rows if row["batch_size"] == batch_size]
        if any(own):
            found.append(f"{batch_size:,}" + ("" if all(own) else f" ({sum(own)} of {len(own)} seeds)"))
    return ", ".join(found) or "none"


def _range(question: Range, rows: Sequence[Row]) -> str:
    """The longest median time over the shortest one."""
    sizes = sorted({row["batch_size"] for row in rows if question.low <= row["batch_size"] <= question.high})
    if len(sizes) < 2:
        return ABSENT
    times = {size: median_to_target([row for row in rows if row["batch_size"] == size], "time_s") for size in sizes}
    slow, fast = max(sizes, key=times.__getitem__), min(sizes, key=times.__getitem__)
    if math.isinf(times[slow]):
        return f"{slow:,} never reached the target"
    tried = ", ".join(f"{size:,}" for size in sizes)
    return (
        f"{times[slow] / times[fast]:.2f} (slowest over fastest of {tried}: {times[slow]:.3g} s with {slow:,} over "
        f"{times[fast]:.3g} s with {fast:,})"
    )


def _ratio(ratio: Ratio, values: Mapping[str, Any]) -> str:
    of, over = (_find(pick, values) for pick in (ratio.of, ratio.over))
    if not of or not over:
        return ABSENT
    refused = [row for row in (*of, *over) if "refused" in row]
    if refused:
        return "waits for several devices, see below" if refused[0]["devices"] > 1 else "refused, see below"
    if ratio.measure == "samples_per_s":
        return _rates(of, over)
    counts = [median_to_target(rows, ratio.measure) for rows in (of, over)]
    if math.inf in counts:
        return "both never reached the target" if counts[0] == counts[1] else f"the {_which(counts)} never reached it"
    unit = " s" if ratio.measure == "time_s" else ""
    return f"{counts[0] / counts[1]:.2f} ({counts[0]:.3g}{unit} over {counts[1]:.3g}{unit})"


def _which(counts: Sequence[float]) -> str:
    return "first" if math.isinf(counts[0]) else "second"


def _rates(of: Sequence[Row], over: Sequence[Row]) -> str:
    """Of runs, run by run; of trainings, seed by seed."""
    first, second = (_flat([row["samples_per_s"] for row in rows]) for rows in (of, over))
    return spread_text(ratios(first, second), "{:.2f}")


def _find(pick: Pick, values: Mapping[str, Any]) -> list[Row]:
    best = values.get("best_batch_size", 0)
    words = {"best": best, "half": best // 2, "small": values.get("small_batch")}
    wanted = {field: words.get(value, value) for field, value in pick.items()}
    return [row for row in values["rows"] if matches(row, wanted)]


def spread_text(spread: Spread, form: str) -> str:
    """Median, and lowest to highest where there are several values."""
    low, middle, high = (form.format(value) for value in (spread.low, spread.median, spread.high))
    return middle if spread.n == 1 else f"{middle} ({low} to {high})"


def _flat(values: Sequence[Any]) -> list[float]:
    return [rate for value in values for rate in (value if isinstance(value, list) else [value])]
