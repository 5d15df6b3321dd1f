"""Statements of the papers, and whether they hold on the simulated machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from benchmarks.harness import paper
from benchmarks.manycore.diagonal import CRITICAL, FIRST, RANDOM
from benchmarks.manycore.machines import LIU_MACHINES
from benchmarks.manycore.options import CHANGE_MS
from bow.models import NETWORKS

Verdict: TypeAlias = Literal["yes", "in part", "no"]

# Tolerance relative to the paper's range, for best speed-ups and for ratios to the time with a queue
CLOSE = 0.05

POINTS = 0.02  # tolerance of gains: 1.13 and 1.12 are equal

LEAST = 1.005  # smallest ratio that counts as a gain

STRAIGHT = 0.99  # smallest correlation of cells on diagonals


@dataclass(frozen=True)
class Claim:
    """A statement of a paper."""

    what: str  # the statement
    paper: str  # its numbers
    here: str  # simulated numbers
    verdict: Verdict  # whether they agree; in part: same direction, different amount


@dataclass(frozen=True)
class Range:
    """The range of several numbers."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


def best_row(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(rows, key=lambda row: row["speedup"])


def steps_of(own: Mapping[str, Any], third: str = "1-3", fourth: str = "1-4") -> dict[str, float]:
    """Gain of each strategy on one machine, in addition to the previous ones."""
    by_plan = {name: plan["speedup"] for name, plan in own["plans"].items()}
    return {
        "1": by_plan["1"],
        "1-2": by_plan["1-2"],
        "3": by_plan[third] / by_plan["1-2"],
        "4": by_plan[fourth] / by_plan[third],
        "all": by_plan[fourth],
        "pair": own["best_pair"]["speedup"],
        "over pair": by_plan[fourth] / own["best_pair"]["speedup"],
    }


def _paper(table: str, network: str) -> Any:
    return paper("manycore")[table][network]


def graphi_claims(found: Mapping[str, Any], detail: str) -> Iterator[Claim]:
    """Yield the claims of Tang et al."""
    for network, sizes in found.items():
        yield _speedups(network, sizes)
        yield _parallel(network, sizes)
        yield _executors(network, sizes)
    if len(next(iter(found.values()))) > 1:
        yield _small_gain_more(found)
        yield _large_suffer_more(found)
    detailed = {network: sizes[detail] for network, sizes in found.items() if "queues" in sizes.get(detail, {})}
    yield from (_queues(network, own) for network, own in detailed.items())
    if "diagonal" in detailed.get("lstm", {}):
        yield from _diagonals(detailed["lstm"]["diagonal"])
    yield from _options({network: own["options"] for network, own in detailed.items()})


def liu_claims(found: Mapping[str, Any]) -> Iterator[Claim]:
    """Yield the claims of Liu et al., on both machines."""
    for network, own in found.items():
        title, told = NETWORKS[network].title, _paper("figure_3", network)
        here = [steps_of(own[machine]) for machine in LIU_MACHINES]
        yield _gain(f"{title}: strategies 1 and 2 over the recommendation", told["first_two"], here, "1-2")
        yield _gain(f"{title}: strategy 3 over those", told["third"], here, "3")
        addition = [steps_of(own[machine], third="1-3, narrow", fourth="1-3, narrow") for machine in LIU_MACHINES]
        yield _gain(f"{title}: strategy 3 with bow's addition over those", told["third"], addition, "3")
        yield _gain(f"{title}: strategy 4 over 3", told["fourth"], here, "4")
        yield _gain(f"{title}: all over the best uniform pair", told["over_manual"], here, "over pair")
        yield _together(title, told, [own[machine]["plans"] for machine in LIU_MACHINES])
        if network in paper("manycore")["table_1"]:
            yield _pairs(network, [own[machine]["best_pair"]["table_1"] for machine in LIU_MACHINES])


def _gain(what: str, paper: float, here: Sequence[Mapping[str, float]], step: str) -> Claim:
    values = [each[step] for each in here]
    return Claim(what, f"{paper:.2f}", " and ".join(f"{value:.2f}" for value in values), _same_gain(paper, values))


def _same_gain(paper: float, values: Sequence[float]) -> Verdict:
    """Whether the gain is the same on both machines; or on one of them, or at least a gain; or neither."""
    same = [abs(value - paper) <= POINTS for value in values]
    return _of(all(same), any(same) or (paper > LEAST and any(value > LEAST for value in values)))


def _together(title: str, told: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]) -> Claim:
    found = [(each["1-3"]["together"], each["1-4"]["together"]) for each in plans]
    text = f"{told['together']:.2f} with strategies 1 to 3, {told['together_with_fourth']:.2f} with 4"
    here = " and ".join(f"{third:.2f}, {fourth:.2f}" for third, fourth in found)
    verdict = _of(
        all(abs(third - told["together"]) <= 0.1 and fourth > third for third, fourth in found),
        any(abs(third - told["together"]) <= 0.1 or fourth > third for third, fourth in found),
    )
    return Claim(f"{title}: operators that run at the same time", text, here, verdict)


def _pairs(network: str, found: Sequence[Mapping[str, float]]) -> Claim:
    told = _paper("table_1", network)
    best = max(told, key=lambda pair: told[pair])
    what = f"{NETWORKS[network].title}: the best of the pairs of Table I"
    here = " and ".join(f"{max(own, key=lambda pair: own[pair])}: {max(own.values()):.2f}" for own in found)
    verdict = _of_all([max(own, key=lambda pair: own[pair]) == best for own in found])
    return Claim(what, f"{best}: {told[best]:.2f}", here, verdict)


def _speedups(network: str, sizes: Mapping[str, Any]) -> Claim:
    told = Range(*_paper("best_speedup", network))
    best = {size: best_row(own["executors"])["speedup"] for size, own in sizes.items()}
    near = Range(told.low * (1 - CLOSE), told.high * (1 + CLOSE))
    inside = [value in near for value in best.values()]
    verdict = _of(all(inside), any(value > 1 for value in best.values()))
    what = f"{NETWORKS[network].title}: best speed-up over sequential"
    return Claim(what, str(told), ", ".join(f"{size} {value:.2f}" for size, value in best.items()), verdict)


def _executors(network: str, sizes: Mapping[str, Any]) -> Claim:
    told = Range(*_paper("best_executors", network))
    best = {size: best_row(own["executors"])["executors"] for size, own in sizes.items()}
    inside = [told.low <= value <= told.high for value in best.values()]
    what = f"{NETWORKS[network].title}: executors of the best speed-up"
    return Claim(what, str(told), ", ".join(f"{size} {value}" for size, value in best.items()), _of_all(inside))


def _small_gain_more(found: Mapping[str, Any]) -> Claim:
    falling = []
    for sizes in found.values():
        best = [best_row(own["executors"])["speedup"] for own in sizes.values()]
        falling.append(best == sorted(best, reverse=True))
    here = f"in {sum(falling)} of {len(falling)} networks"
    return Claim("Small networks gain more from executors than large ones", "in general", here, _of_all(falling))


def _large_suffer_more(found: Mapping[str, Any]) -> Claim:
    falling, told = [], []
    for network, sizes in found.items():
        left = [own["executors"][-1]["speedup"] for own in sizes.values()]
        falling.append(left == sorted(left, reverse=True))
        told.append(f"{NETWORKS[network].title} {' / '.join(f'{value:.2f}' for value in left)}")
    what = "With too many executors large networks suffer most: speed-up with 32"
    return Claim(what, "large least", ", ".join(told), _of_all(falling))


def _parallel(network: str, sizes: Mapping[str, Any]) -> Claim:
    told = Range(*_paper("best_executors", network))
    found = {size: own["parallelism_with_8"] for size, own in sizes.items()}
    near = Range(told.low - 1, told.high + 1)
    what = f"{NETWORKS[network].title}: operators that are parallel"
    here = ", ".join(f"{size} {value:.1f}" for size, value in found.items())
    return Claim(what, str(told), here, _of_all([value in near for value in found.values()]))


def _queues(network: str, own: Mapping[str, Any]) -> Claim:
    printed = sorted(_paper("table_2", network).values())
    free = sorted(next(iter(row["queue"].values())) for row in own["queues"])
    drawn = sorted(row["random"]["median"] for row in own["queues"])
    told = Range(printed[0] - CLOSE, printed[-1] + CLOSE)
    verdict = _of(all(value in told for value in free), min(free) < 1 - CLOSE / 5)
    here = f"{free[0]:.2f} to {free[-1]:.2f}; any ready operator: {drawn[0]:.2f} to {drawn[-1]:.2f}"
    what = f"{NETWORKS[network].title}: time with critical path first over that with a queue"
    return Claim(what, f"{printed[0]:.2f} to {printed[-1]:.2f}", here, verdict)


def _diagonals(rows: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    lowest = {
        name: min(row["lowest"] for row in rows if row["scheduler"] == name) for name in (CRITICAL, FIRST, RANDOM)
    }
    what = "LSTM: critical path first runs cells along diagonals"
    yield Claim(what, "yes", f"correlation at least {lowest[CRITICAL]:.4f}", _of_all([lowest[CRITICAL] >= STRAIGHT]))
    missed = [lowest[name] < STRAIGHT for name in (FIRST, RANDOM)]
    here = f"at least {lowest[FIRST]:.4f} first come, {lowest[RANDOM]:.4f} with any ready operator"
    yield Claim("LSTM: the baseline does not", "yes", here, _of_all(missed))


def _options(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    best = {network: min(each["time"] for each in own["sizes"]) for network, own in found.items()}
    told = ", ".join(f"{NETWORKS[network].title} {time:.3f}" for network, time in best.items())
    verdict = _of_all([time > 0.98 for time in best.values()])
    yield Claim("Executors of several sizes do not make a step shorter", "time not below 1", told, verdict)
    saved = {network: own["changing"]["saved_ms"] for network, own in found.items()}
    told = ", ".join(f"{NETWORKS[network].title} {value:.2f} ms" for network, value in saved.items())
    verdict = _of_all([value < CHANGE_MS[0] for value in saved.values()])
    what = "Another number of executors for the backward pass is not worth the change"
    yield Claim(what, f"a change costs {CHANGE_MS[0]:g} to {CHANGE_MS[1]:g} ms", f"saves {told}", verdict)
    kept = {network: own["preferred"][-1]["time"] for network, own in found.items()}
    told = ", ".join(f"{NETWORKS[network].title} {time:.4f}" for network, time in kept.items())
    verdict = _of_all([time > 0.98 for time in kept.values()])
    yield Claim("Preferred executors bring little", "a modest gain of element-wise operators", told, verdict)


def _of_all(holds: Sequence[bool]) -> Verdict:
    return _of(all(holds), any(holds))


def _of(holds: bool, partly: bool) -> Verdict:
    return "yes" if holds else "in part" if partly else "no"
