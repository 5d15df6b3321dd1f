"""The tables of `python -m benchmarks placement`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.placement_paper import OUT_OF_MEMORY, PAPER, PAPER_GROUPS, PAPER_LARGE
from benchmarks.results import Table

Case = Mapping[str, Any]  # What was found for a network, a size, links and a number of GPUs

BASELINES = ("cpu", "gpu", "scotch", "mincut", "metis", "expert")  # Methods that look at no placement

# By what is counted for a device: its column
_LOADS = {
    "forward_ns": "forward",
    "backward_ns": "backward",
    "update_ns": "update",
    "copied_from_processor_ns": "copies from the processor",
    "copied_from_accelerator_ns": "copies from GPUs",
    "summed_ns": "sums",
}


def best_baseline(case: Case) -> tuple[str, float] | None:
    """The fastest method that looks at no placement, and its seconds; None: none fits."""
    found = [(row["method"], row["seconds"]) for row in case["rows"] if row["method"] in BASELINES]
    return min((each for each in found if each[1] is not None), key=lambda each: each[1], default=None)


def misses(case: Case, behind: float) -> str | None:
    """Which aim is missed; None: none.

    What is learned is to take at most so many times what the best baseline takes, and less than it for NMT.
    """
    learned, best = _seconds(case, "learned"), best_baseline(case)
    if "learned" not in {row["method"] for row in case["rows"]} or best is None:
        return None
    if learned is None:
        return "nothing fits"
    is_behind = learned >= best[1] if case["network"] == "nmt" else learned > behind * best[1]
    return f"{learned / best[1] - 1:+.1%} against {best[0]}" if is_behind else None


def _seconds(case: Case, method: str) -> float | None:
    return next((row["seconds"] for row in case["rows"] if row["method"] == method), None)


def _greedy(case: Case) -> float | None:
    return next((row["greedy_s"] for row in case["rows"] if row["method"] == "learned"), None)


def _name(case: Case) -> str:
    return case["title"] if case["size"] == "paper" else f"{case['title']}, {case['size']}"


def _head(case: Case) -> list[str]:
    """Network, links and number of GPUs."""
    return [_name(case), case["links"].replace("_", " "), str(case["gpus"])]


def groups_table(cases: Sequence[Case]) -> Table:
    """Operators and groups, the paper's in brackets."""
    seen: dict[str, list[str]] = {}
    for case in cases:
        found, paper = case["statistics"], PAPER_GROUPS[case["network"]]
        kinds = ", ".join(f"{count} {kind}" for kind, count in found["kinds"].items())
        texts = [f"{found['operators']} ({paper[0]})", f"{found['groups']} ({paper[1]})"]
        seen[_name(case)] = [_name(case), *texts, str(found["flows"]), f"{found['flow_bytes'] / 2**20:.0f}", kinds]
    columns = ("network", "operators", "groups", "pairs that exchange", "MiB between them", "kinds of groups")
    return Table(columns, list(seen.values()), left=("network", "kinds of groups"))


def times_table(cases: Sequence[Case], methods: Sequence[str]) -> Table:
    """Seconds of a step, the paper's in brackets."""
    lines = []
    for case in cases:
        paper = _paper(case)
        texts = []
        for method in methods:
            row = next(row for row in case["rows"] if row["method"] == method)
            time = f"{row['seconds']:.3f}" if row["seconds"] is not None else _short(row["why_not"])
            texts.append(f"{time} ({paper[method]})" if method in paper else time)
        greedy = _greedy(case)
        lines.append([*_head(case), *texts, "" if greedy is None else f"{greedy:.3f}"])
    return Table(("network", "links", "GPUs", *methods, "greedy"), lines, left=("network", "links"))


def _paper(case: Case) -> Mapping[str, float | str]:
    """What the paper measured, by method; nothing where it has no such case."""
    if case["size"] == "large":
        return {"learned": PAPER_LARGE[case["network"]]}
    return PAPER.get((case["network"], case["gpus"]), {}) if case["size"] == "paper" else {}


def _short(why_not: str) -> str:
    return OUT_OF_MEMORY if "GiB" in why_not else "-"


def verdicts_table(cases: Sequence[Case], behind: float) -> Table:
    """What is learned against the best of those that search nothing, and against the other searches."""
    lines = []
    for case in cases:
        learned, best, missed = _seconds(case, "learned"), best_baseline(case), misses(case, behind)
        others = [None if best is None else best[1], _seconds(case, "mcmc"), _seconds(case, "soap"), _greedy(case)]
        texts = ["" if other is None or learned is None else f"{learned / other - 1:+.1%}" for other in others]
        verdict = "yes" if missed is None else "no"
        lines.append([*_head(case), "none fits" if best is None else best[0], *texts, verdict])
    against = ("against it", "against mcmc", "against soap", "against greedy", "aim met")
    columns = ("network", "links", "GPUs", "best baseline", *against)
    return Table(columns, lines, left=("network", "links", "best baseline", "aim met"))


def where_table(cases: Sequence[Case]) -> Table:
    """How many groups each device has, and where embeddings are, in what is learned."""
    lines = []
    for case in cases:
        for row in (row for row in case["rows"] if row["method"] == "learned" and row["devices"]):
            shares = ", ".join(f"{name} {count}" for name, count in row["groups_on"].items() if count)
            lines.append([*_head(case), shares, ", ".join(row["embeddings_on"]) or "none"])
    left = ("network", "links", "groups on", "embeddings on")
    return Table(("network", "links", "GPUs", "groups on", "embeddings on"), lines, left=left)


def real_table(values: Mapping[str, Any]) -> Table:
    """Milliseconds of real steps."""
    rows = values["rows"]
    names = values["device_names"]
    single = next(row["measured_ms"]["median"] for row in rows if row["method"] == "single")
    lines = []
    for row in rows:
        measured = row["measured_ms"]
        shares = ", ".join(f"{name} {count}" for name, count in zip(names, row["groups_on"], strict=True))
        spread = f"{measured['median']:.2f} ({measured['low']:.2f} to {measured['high']:.2f})"
        speedup = f"{single / measured['median']:.2f}"
        lines.append([row["method"], shares, f"{row['predicted_ms']:.2f}", spread, speedup])
    columns = ("method", "groups on", "predicted ms", "measured ms", "times as fast as single")
    return Table(columns, lines, left=("method", "groups on"))


def loads_table(cases: Sequence[Case]) -> Table:
    """What each device is busy with."""
    lines = []
    for case in cases:
        for row in case["rows"]:
            for load in row.get("loads", ()):
                times = [f"{load[name] / 1e6:.1f}" for name in _LOADS]
                lines.append([*_head(case), row["method"], load["device"], *times])
    return Table(
        ("network", "links", "GPUs", "method", "device", *_LOADS.values()),
        lines,
        left=("network", "links", "method", "device"),
    )


def towers_table(cases: Sequence[Case]) -> Table:
    """Data parallelism with the weights on the processor."""
    lines = []
    for case in cases:
        for kind, found in case["towers"].items():
            mean = [sum(found[name]) / len(found[name]) for name in ("computing_s", "copying_s")]
            times = [found["step_s"], *mean, found["updating_s"]]
            lines.append([*_head(case), kind, *(f"{seconds:.3f}" for seconds in times)])
    columns = ("a step", "a tower computes", "it copies", "the processor updates")
    return Table(("network", "links", "GPUs", "towers", *columns), lines, left=("network", "links", "towers"))


def small_table(rows: Sequence[Mapping[str, Any]], near: float) -> Table:
    """How often each search came near the optimum of steps of which every placement was looked at."""
    names = {"learned": "learned", "greedy": "decoded greedily", "mcmc": "mcmc", "random": "random search"}
    lines = []
    for name, title in names.items():
        known = [row[name] for row in rows if row[name] is not None]
        best = sum(row[name] is not None and row[name] <= 1.0 for row in rows)
        count = sum(ratio <= near for ratio in known)
        mean = math.exp(math.fsum(map(math.log, known)) / len(known)) if known else math.nan
        slowest = f"{max(known):.3f}" if known else ""
        lines.append([title, f"{count} of {len(rows)}", str(best), f"{mean:.4f}", slowest, str(len(rows) - len(known))])
    columns = ("search", f"within {near - 1:.0%}", "optimal", "geometric mean over optimum", "worst", "nothing fits")
    return Table(columns, lines, left=("search",))
