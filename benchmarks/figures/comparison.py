"""Compare the values of a figure with statements of the paper, and format them for the page."""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures.catalogue import FIGURES, MODELS, NAMES, TABLE, count_parameters, model_mb
from benchmarks.figures.convergence import METRIC, median_to_target
from benchmarks.figures.forms import SYNC_TITLES, Row, matches, title, values_of
from benchmarks.harness import paper, ratios, values_text, whole_spread

ABSENT = "not measured in this form"


def stem(name: str) -> str:
    """File name of a figure, without suffix."""
    return "table_5.1" if name == TABLE else f"figure_{name}"


def context(folder: Path) -> dict[str, Any]:
    """Context of the page `figures.md`: the JSON files in the folder."""
    paths = {name: folder / f"{stem(name)}.json" for name in NAMES}
    return {
        "figures": FIGURES,
        "found": {n: json.loads(p.read_text(encoding="utf-8")) for n, p in paths.items() if p.is_file()},
        "stem": stem,
        "sizes": sizes,
        "metric": METRIC,
        "comparison": comparison,
        "title": title,
        "sync_titles": SYNC_TITLES,
        "trainings": trainings,
        "refusals": refusals,
        "rates": lambda row: values_text(row["samples_per_s"], ",.0f"),
    }


def comparison(name: str, values: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return for each statement of the paper about a figure: description, the paper's value, and ours."""
    statements = paper("figures")["statements"][name]
    return [(each["what"], each["value"], answer(each, values)) for each in statements]


def answer(statement: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Return our value as text."""
    if "of" in statement:
        return _ratio(statement, values)
    if "range" in statement:
        return _range(statement["range"], values["rows"])
    if "ask" not in statement:
        return ""
    if statement["ask"] == "best batch size":
        return f"{values['best_batch_size']:,}"
    return _batch_sizes(values["rows"], reached=statement["ask"] == "reached")


@functools.cache
def sizes(name: str) -> str:
    """Format the size of a model in the paper, and of ours."""
    told = next(row["model_mb"] for row in paper("figures")["characteristics"] if row["model"] == name)
    parameters = count_parameters(next(workload for model, workload, *_ in MODELS if model == name).build())
    return f"{told:g} MB in the paper, {model_mb(parameters):.3g} MB here ({parameters:,} parameters)"


def trainings(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of a table of trainings, a row for each entry."""
    groups: dict[tuple[str, int, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((title(row), row["batch_size"], row["lr"]), []).append(row)
    lines = []
    for (who, batch_size, lr), own in groups.items():
        reached = f"{sum(row['epochs'] is not None for row in own)} of {len(own)}"
        times = [_to_target([row[what] for row in own], form) for what, form in (("epochs", ".3g"), ("time_s", ".2f"))]
        speeds = [row["samples_per_s"] for row in own if row["samples_per_s"] is not None]
        speed = values_text(speeds, ",.0f")
        lines.append([who, f"{batch_size:,}", f"{lr:g}", str(own[0]["threads"]), reached, *times, speed, _best(own)])
    return lines


def refusals(values: Mapping[str, Any]) -> list[str]:
    """Return the entries that bow rejected, with its messages."""
    by_sentence: dict[str, list[str]] = {}
    for row in values["rows"]:
        if "refused" in row:
            sync = SYNC_TITLES[row["sync"]]
            by_sentence.setdefault(row["refused"], []).append(f"{title(row)} on {row['devices']} devices ({sync})")
    return [f"bow refused {'; '.join(entries)}: \u201c{sentence}\u201d" for sentence, entries in by_sentence.items()]


def _to_target(values: Sequence[float | None], form: str) -> str:
    """Time to target over all trainings; infinite for those that did not reach it."""
    times = [math.inf if value is None else value for value in values]
    return "never" if math.isinf(min(times)) else values_text(times, form).replace("inf", "never")


def _best(rows: Sequence[Row]) -> str:
    """Median over trainings of the highest accuracy of an epoch."""
    best = [100 * max(row["accuracies"]) for row in rows if row["accuracies"]]
    diverged = sum(row["diverged"] for row in rows)
    told = f"{whole_spread(best)['median']:.1f}%" if best else ""
    return f"{told} ({diverged} diverged)" if diverged else told


def _batch_sizes(rows: Sequence[Row], reached: bool) -> str:
    """The batch sizes with which trainings did or did not reach the target; with the number of seeds, if not all."""
    found = []
    for batch_size in dict.fromkeys(row["batch_size"] for row in rows):
        own = [(row["epochs"] is not None) == reached for row in rows if row["batch_size"] == batch_size]
        if any(own):
            found.append(f"{batch_size:,}" + ("" if all(own) else f" ({sum(own)} of {len(own)} seeds)"))
    return ", ".join(found) or "none"


def _range(ends: Sequence[int], rows: Sequence[Row]) -> str:
    """Ratio of the longest to the shortest median time."""
    tried = sorted({row["batch_size"] for row in rows if ends[0] <= row["batch_size"] <= ends[1]})
    if len(tried) < 2:
        return ABSENT
    times = {size: median_to_target([row for row in rows if row["batch_size"] == size], "time_s") for size in tried}
    slow, fast = max(tried, key=times.__getitem__), min(tried, key=times.__getitem__)
    if math.isinf(times[slow]):
        return f"{slow:,} never reached the target"
    of = ", ".join(f"{size:,}" for size in tried)
    return (
        f"{times[slow] / times[fast]:.2f} (slowest over fastest of {of}: {times[slow]:.3g} s with {slow:,} over "
        f"{times[fast]:.3g} s with {fast:,})"
    )


def _ratio(statement: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    measure = statement.get("measure", "samples_per_s")
    of, over = (_find(statement[side], values, statement.get("tuned", False)) for side in ("of", "over"))
    if not of or not over:
        return ABSENT
    refused = [row for row in (*of, *over) if "refused" in row]
    if refused:
        return "waits for several devices, see below" if refused[0]["devices"] > 1 else "refused, see below"
    if measure == "samples_per_s":
        by_turn = ratios(values_of(of, measure), values_of(over, measure))  # run by run, or seed by seed
        return values_text(by_turn, ".2f")
    counts = [median_to_target(rows, measure) for rows in (of, over)]
    if math.inf in counts:
        which = "first" if math.isinf(counts[0]) else "second"
        return "both never reached the target" if counts[0] == counts[1] else f"the {which} never reached it"
    unit = " s" if measure == "time_s" else ""
    return f"{counts[0] / counts[1]:.2f} ({counts[0]:.3g}{unit} over {counts[1]:.3g}{unit})"


def _find(pick: Mapping[str, Any], values: Mapping[str, Any], tuned: bool) -> list[Row]:
    """Return the rows that a statement asks for; `tuned`: with the learning rate that is fastest to the target."""
    best = values.get("best_batch_size", 0)
    words = {"best": best, "half": best // 2, "small": values.get("small_batch")}
    wanted = {field: words.get(value, value) for field, value in pick.items()}
    found = [row for row in values["rows"] if matches(row, wanted)]
    if not tuned:
        return found
    found += [row for row in values["tuned"] if matches(row, wanted)]
    by_rate = [[row for row in found if row["lr"] == lr] for lr in dict.fromkeys(row["lr"] for row in found)]
    return min(by_rate, key=lambda rows: median_to_target(rows, "time_s"), default=[])
