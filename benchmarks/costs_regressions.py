"""How well regressions know operators of a network that they have not seen: Liu et al.'s Table IV."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cost_models import (
    Curve,
    HillClimb,
    Profile,
    Regression,
    Roofline,
    Sample,
    Saturation,
    Threads,
    Work,
    accuracy,
    computed_events,
    evenly,
    placements,
    r_squared,
)

# Numbers of runs: what a model is told of an operator is another measurement than what it is held against
SAMPLED, UNSEEN = 0, 1

# A Xeon Phi 7250 by its data sheet: in each core two vector units with multiply-add, 1.4 GHz; 400 GB/s
ROOFLINE = Roofline(6.1e12, 400e9, latency_s=5e-6, cores=68, bandwidth_cores=40)

INTERVAL = 4  # Of the climb that regressions are compared with

MISCOUNT = 0.5  # Standard deviation of the logarithm of a count, where it is tried what inaccurate counters would do


@dataclass(frozen=True)
class Operators:
    """What a machine makes of operators."""

    profiles: Mapping[str, Profile]  # by operator: what a regression is told
    times: Mapping[str, Mapping[Threads, float]]  # by operator: seconds by case, of other runs

    def actual(self, case: Threads) -> list[float]:
        """Seconds of all in a case."""
        return [times[case] for times in self.times.values()]


def run_all(
    machine: Saturation,
    works: Mapping[str, Work],
    samples: Sequence[Threads],
    cases: Sequence[Threads],
    miscount: float = 0,
) -> Operators:
    """Run operators on a machine."""
    draws = random.Random(machine.seed)

    def seconds(work: Work, case: Threads, run: int) -> float:
        return machine.time_s(work.flops, work.bytes_moved, work.kind, case, run)

    def sample(work: Work, case: Threads) -> Sample:
        taken = seconds(work, case, SAMPLED)
        events = computed_events(work, case, taken)
        return Sample(taken, {name: many * math.exp(draws.gauss(0.0, miscount)) for name, many in events.items()})

    profiles = {name: {case: sample(work, case) for case in samples} for name, work in works.items()}
    times = {name: {case: seconds(work, case, UNSEEN) for case in cases} for name, work in works.items()}
    return Operators(profiles, times)


def compare_families(
    machine: Saturation,
    seen: Mapping[str, Work],
    unseen: Mapping[str, Work],
    *,
    families: Sequence[str],
    samples: Sequence[int],
    num_cases: int,
    seed: int,
    miscount: float = 0.0,
) -> dict[str, Any]:
    """By number of samples and family: accuracy and R2 of operators that were not trained on."""
    all_lanes = placements(machine.cores)
    cases = evenly(all_lanes, num_cases)
    found = {}
    for count in samples:
        chosen = evenly(all_lanes, count)
        training, test = (run_all(machine, works, chosen, cases, miscount) for works in (seen, unseen))
        found[str(count)] = {family: score_family(family, training, test, chosen, seed) for family in families}
    return found


def score_family(
    family: str, training: Operators, test: Operators, samples: Sequence[Threads], seed: int = 0
) -> dict[str, Any]:
    """Train one regression and hold it against what it has not seen."""
    model = Regression(family, samples, seed=seed)
    model.fit(training.profiles, training.times)
    cases = list(next(iter(test.times.values())))
    profiles = list(test.profiles.values())
    predicted = [seconds for case in cases for seconds in model.times_s(profiles, case)]
    return {**scored(predicted, [seconds for case in cases for seconds in test.actual(case)]), "events": model.events}


def compare_others(machine: Saturation, unseen: Mapping[str, Work], num_cases: int) -> dict[str, dict[str, float]]:
    """The same of models that need no training: the climb, on the cases that it has not measured, and the roofline."""
    cases = evenly(placements(machine.cores), num_cases)
    climbed: list[float] = []
    climbed_actual: list[float] = []
    computed: list[float] = []
    actual: list[float] = []
    for work in unseen.values():
        walk = HillClimb(machine.cores, INTERVAL)
        while (case := walk.next_placement()) is not None:
            walk.report(case, machine.time_s(work.flops, work.bytes_moved, work.kind, case, SAMPLED))
        for case in cases:
            seconds = machine.time_s(work.flops, work.bytes_moved, work.kind, case, UNSEEN)
            computed.append(ROOFLINE.time_s(work.flops, work.bytes_moved, case.threads))
            actual.append(seconds)
            if case not in walk.measured:
                climbed.append(Curve(walk.measured).time_s(case))
                climbed_actual.append(seconds)
    return {
        f"hill climbing, interval {INTERVAL}": scored(climbed, climbed_actual),
        "roofline": scored(computed, actual),
    }


def scored(predicted: Sequence[float], actual: Sequence[float]) -> dict[str, float]:
    """Accuracy and R2."""
    return {"accuracy": round(accuracy(predicted, actual), 4), "r_squared": round(r_squared(predicted, actual), 4)}
