"""What the numbers should come to, and whether they do."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.racing import COMPILED_GRAPHED, GRAPHED, PLAIN, best_of_bow, gain
from benchmarks.gpu.testing import failures
from benchmarks.harness import ratios, spread, spread_text

MET, MISSED, OPEN = "met", "missed", "not measured"

# Best of bow over the fastest single model
SPEED_UPS = {"throughput_lenet_16": ("LeNet, batch 16", 5.0), "throughput_resnet32_32": ("ResNet-32, batch 32", 1.8)}
MEMBERS = {"members_lenet_16": ("LeNet, batch 16", 8.0), "members_resnet32_32": ("ResNet-32, batch 32", 1.8)}
OVER_EAGER = {"throughput_lenet_16": ("LeNet, batch 16", 20.0)}

# Percent that averaging may cost
OVERHEADS = {"averaging_lenet_16": ("LeNet, batch 16", 5.0), "averaging_resnet32_32": ("ResNet-32, batch 32", 2.0)}

BANDWIDTH = 0.8  # Share of a copy's bandwidth that kernels over rows should reach, on rows that do not fit into a cache

LARGE = "25 million"

Parts = Mapping[str, Mapping[str, Any]]


def judge(parts: Parts, fake: bool) -> list[dict[str, Any]]:
    """All aims with what was found; on a fake device no time means anything."""
    found = [*_speed_ups(parts), *_overheads(parts), *_bandwidths(parts), *_tests(parts)]
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
        found = f"{spread_text(factor, '.2f', '-')}, {final['best']} over {final['one']}, the two again alone"
        if COMPILED_GRAPHED in (row["name"] for row in parts[part]["contestants"]):
            yield _judged(text, factor["median"] >= aim, found, factor["median"])
        else:
            yield _open(text) | {"found": f"{found}; but {COMPILED_GRAPHED} is missing"}
    for part, (title, aim) in MEMBERS.items():
        text = f"members of {title}: at least {aim:g} times a loop of graphed trainings"
        rates = {row["name"]: row["rates"] for row in parts.get(part, {}).get("contestants", ())}
        own = next((name for name in rates if name.endswith(" members")), None)
        gains = {name: made for name in rates if own and name != own and (made := gain(rates, own, name)) is not None}
        if GRAPHED not in gains:
            yield _open(text)
            continue
        found = ", ".join(f"{each['median']:.2f} over {name}" for name, each in gains.items())
        times = gains[GRAPHED]["median"]
        yield _judged(text, times >= aim, f"{own}: {found}", times)
    for part, (title, aim) in OVER_EAGER.items():
        text = f"{title}: at least {aim:g} times eager PyTorch"
        rows = parts.get(part, {}).get("contestants", ())
        best, eager = best_of_bow(rows), next((row for row in rows if row["name"] == PLAIN), None)
        if best is None or eager is None:
            yield _open(text)
            continue
        factor = best["samples_per_s"]["median"] / eager["samples_per_s"]["median"]
        yield _judged(text, factor >= aim, f"{factor:.2f}, {best['name']}", factor)


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
        found = f"{spread_text(percent, '.2f', '-', ' %')}, in the worst case, {where}"
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


def _tests(parts: Parts) -> Iterator[dict[str, Any]]:
    text = "kernels and engines agree with PyTorch and `eager`, and all other tests pass"
    tested = [findings for findings in parts.values() if "total" in findings]
    if not tested:
        yield _open(text)
        return
    wrong, ran = sum(len(failures(each)) for each in tested), sum(len(each["cases"]) for each in tested)
    yield _judged(text, not wrong, f"{ran - wrong} of {ran}, of all {sum(each['total'] for each in tested)}", None)


def _judged(text: str, is_met: bool, found: str, value: float | None) -> dict[str, Any]:
    return {"aim": text, "verdict": MET if is_met else MISSED, "found": found, "value": value}


def _open(text: str) -> dict[str, Any]:
    return {"aim": text, "verdict": OPEN, "found": "", "value": None}
