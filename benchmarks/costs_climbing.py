"""How well hill climbing knows the cases that it has not measured: Liu et al.'s Table V on a machine made up."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cost_models import Curve, HillClimb, Saturation, Threads, Work, accuracy, cases, r_squared
from benchmarks.cost_models.evidence import standalone

Times = Mapping[Threads, float]  # Seconds of an operator in every case


@dataclass(frozen=True)
class Variant:
    """A machine that is climbed on."""

    title: str  # what is special about it
    machine: Saturation  # the machine


@dataclass(frozen=True)
class Climbed:
    """What came of one operator's climb."""

    untested: float | None  # accuracy of all cases that were not measured; None where there is none
    between: float | None  # accuracy of those that lie between two that were
    behind: float | None  # accuracy of those behind the last that was
    loss: float  # how much longer the best case found takes than the best there is, without noise, as a part
    measured: int  # how many cases were
    predicted: tuple[float, ...]  # seconds of the cases that were not measured
    actual: tuple[float, ...]  # what they took


def variants(noise: float, seed: int) -> list[Variant]:
    """The machines: as noisy as is taken for normal, without noise, three times as noisy, and of Table II."""
    usual = Saturation(noise=noise, seed=seed)
    return [
        Variant("as set", usual),
        Variant("no noise", replace(usual, noise=0.0)),
        Variant("three times the noise", replace(usual, noise=3 * noise)),
        Variant("convolutions with what does not scale in Table II", standalone(usual)),
    ]


def climb_all(works: Mapping[str, Work], variant: Variant, intervals: Sequence[int]) -> dict[str, Any]:
    """By interval: what the climbs of all operators come to, on average."""
    machine = variant.machine
    noisy = [times_of(machine, work) for work in works.values()]
    quiet = noisy if not machine.noise else [times_of(replace(machine, noise=0.0), work) for work in works.values()]
    return {
        str(interval): _summary(
            [climb(times, truth, machine.cores, interval) for times, truth in zip(noisy, quiet, strict=True)]
        )
        for interval in intervals
    }


def times_of(machine: Saturation, work: Work) -> dict[Threads, float]:
    """What an operator takes in every case of a machine."""
    return {case: machine.time_s(work.flops, work.bytes_moved, work.kind, case) for case in cases(machine.cores)}


def climb(times: Times, truth: Times, cores: int, interval: int) -> Climbed:
    """Climb on one operator's times, and ask for all that was not measured."""
    walk = HillClimb(cores, interval)
    while (case := walk.next_placement()) is not None:
        walk.report(case, times[case])
    untested = [case for case in times if case not in walk.measured]
    curve = Curve(walk.measured)

    def score(chosen: list[Threads]) -> float | None:
        return accuracy([curve.time_s(case) for case in chosen], [times[case] for case in chosen]) if chosen else None

    return Climbed(
        untested=score(untested),
        between=score([case for case in untested if curve.reaches(case)]),
        behind=score([case for case in untested if not curve.reaches(case)]),
        loss=truth[walk.best] / min(truth.values()) - 1,
        measured=len(walk.measured),
        predicted=tuple(curve.time_s(case) for case in untested),
        actual=tuple(times[case] for case in untested),
    )


def _summary(climbs: Sequence[Climbed]) -> dict[str, Any]:
    predicted = [value for each in climbs for value in each.predicted]
    actual = [value for each in climbs for value in each.actual]
    return {
        "accuracy": _mean([each.untested for each in climbs]),
        "accuracy_between": _mean([each.between for each in climbs]),
        "accuracy_behind": _mean([each.behind for each in climbs]),
        "r_squared": round(r_squared(predicted, actual), 4) if actual else None,
        "loss_mean": _mean([each.loss for each in climbs]),
        "loss_most": round(max(each.loss for each in climbs), 4),
        "measured_mean": _mean([float(each.measured) for each in climbs]),
        "measured_most": max(each.measured for each in climbs),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 4) if known else None
