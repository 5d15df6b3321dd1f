"""What the numbers should come to, and whether they do."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness import ratios, spread

MET, MISSED, OPEN = "met", "missed", "not measured"

# Best of bow over one graphed learner
SPEED_UPS = {"throughput_lenet_16": ("LeNet, batch 16", 5.0), "throughput_resnet32_32": ("ResNet-32, batch 32", 1.8)}

# Percent that averaging may cost
OVERHEADS = {"averaging_lenet_16": ("LeNet, batch 16", 5.0), "averaging_resnet32_32": ("ResNet-32, batch 32", 2.0)}

BANDWIDTH = 0.8  # Share of a copy's bandwidth that kernels over rows should reach, on rows that do not fit into a cache

LARGE = "25 million"

Parts = Mapping[str, Mapping[str, Any]]


def judge(parts: Parts, fake: bool) -> list[dict[str, Any]]:
    """All aims with what was found; on a fake device no time means anything."""
    found = [*_speed_ups(parts), *_overheads(parts), *_bandwidths(parts), *_agreement(parts)]
    if fake:
        found = [aim | {"verdict": OPEN} for aim in found]
    return found


def _speed_ups(parts: Parts) -> Iterator[dict[str, Any]]:
    for part, (title, aim) in SPEED_UPS.items():
        text = f"{title}: at least {aim:g} times one graphed learner"
        final = parts.get(part, {}).get("final")
        if final is None:
            yield _open(text)
            continue
        factor = spread(ratios(final["rates"][final["best"]], final["rates"][final["one"]]), 3)
        over = f"{factor['median']:.2f} ({factor['low']:.2f}-{factor['high']:.2f})"
        found = f"{over}, {final['best']} over {final['one']}, the two again alone"
        yield _judged(text, factor["median"] >= aim, found, factor["median"])


def _overheads(parts: Parts) -> Iterator[dict[str, Any]]:
    for part, (title, aim) in OVERHEADS.items():
        text = f"{title}: averaging costs at most {aim:g} %"
        rows = parts.get(part, {}).get("rows", ())
        if not rows:
            yield _open(text)
            continue
        worst = max(rows, key=lambda row: row["percent_over_never"]["median"])
        percent = worst["percent_over_never"]
        where = f"{worst['engine']} with {worst['learners']} learners"
        found = f"{percent['median']:.2f} % ({percent['low']:.2f}-{percent['high']:.2f}), in the worst case, {where}"
        yield _judged(text, percent["median"] <= aim, found, percent["median"])


def _bandwidths(parts: Parts) -> Iterator[dict[str, Any]]:
    text = f"kernels over rows of {LARGE}: at least {BANDWIDTH:.0%} of a copy's bandwidth"
    rows = [row for row in parts.get("kernels", {}).get("rows", ()) if row["size"] == LARGE]
    if not rows:
        yield _open(text)
        return
    worst = min(rows, key=lambda row: row["share_of_copy"]["median"])
    share = worst["share_of_copy"]["median"]
    found = f"{share:.0%} in the worst case, {worst['kernel']} with {worst['learners']} learners"
    yield _judged(text, share >= BANDWIDTH, found, share)


def _agreement(parts: Parts) -> Iterator[dict[str, Any]]:
    text = "kernels and engines agree with PyTorch and `eager`"
    findings = parts.get("agreement", {})
    rows = [*findings.get("kernels", ()), *findings.get("engines", ())]
    if not rows:
        yield _open(text)
        return
    wrong = [row for row in rows if not row["agrees"]]
    names = ", ".join(dict.fromkeys(str(row.get("kernel", row.get("engine"))) for row in wrong))
    yield _judged(text, not wrong, f"{len(rows) - len(wrong)} of {len(rows)}{': not ' + names if wrong else ''}", None)


def _judged(text: str, is_met: bool, found: str, value: float | None) -> dict[str, Any]:
    return {"aim": text, "verdict": MET if is_met else MISSED, "found": found, "value": value}


def _open(text: str) -> dict[str, Any]:
    return {"aim": text, "verdict": OPEN, "found": "", "value": None}
