"""The same cost models on this machine: operators of small networks, measured twice with every number of threads."""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from benchmarks.cost_models import Curve, HillClimb, Roofline, Sample, Threads, Work, computed_events
from benchmarks.cost_models.events import count, why_not
from benchmarks.costs_population import is_worth_measuring, key_of, works_of
from benchmarks.costs_regressions import Operators, score_family, scored
from benchmarks.harness import spread
from bow.graph.execution import inputs_of, run_operator
from bow.models import NETWORKS
from bow.runtime.local import operators_of
from bow.schedule.profiler.measuring import BoundStep, measure

FAMILIES = ("k-neighbours", "gradient boosting", "random forest", "ordinary least squares")
ONE = Threads(1)

SIZE = "tiny"  # Of the networks: the one for few cores

Count: TypeAlias = Callable[[Callable[[], object]], Mapping[str, float]]  # Runs something and counts events meanwhile


@dataclass(frozen=True)
class Measured:
    """The different operators of a network's step on this machine."""

    works: Mapping[str, Work]  # by operator
    first: Mapping[str, Mapping[Threads, float]]  # by operator: seconds by case
    again: Mapping[str, Mapping[Threads, float]]  # the same, measured again afterwards
    spread: Mapping[str, float]  # by operator: with one thread, between the quartiles, as a part of the median
    events: Mapping[str, Mapping[str, float]]  # by operator

    def profile(self, operator: str) -> dict[Threads, Sample]:
        """What a regression is told: one run with one thread."""
        seconds = self.first[operator][ONE]
        events = self.events.get(operator) or computed_events(self.works[operator], ONE, seconds)
        return {ONE: Sample(seconds, events)}


def measure_network(network: str, samples: int, cores: int, repeats: int) -> Measured:
    """Measure all operators of a step, one after another as in a step, with 1 to `cores` threads, and then again."""
    chosen = NETWORKS[network]
    torch.manual_seed(0)
    subject = BoundStep.of(chosen.build(SIZE), chosen.batch(SIZE, samples), chosen.loss)
    threads = list(range(1, cores + 1))
    first, spread = _times(subject, threads, repeats)
    again, _ = _times(subject, threads, repeats)
    events = {} if why_not() else count_events(subject, count)
    return Measured(works_of(subject.graph), first, again, spread, events)


def count_events(subject: BoundStep, counting: Count) -> dict[str, Mapping[str, float]]:
    """Run a step with one thread, and count what happens in each operator."""
    graph, events = subject.graph, dict[str, Mapping[str, float]]()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        live = inputs_of(graph, subject.parameters, subject.buffers, subject.batch)
        with torch.no_grad():
            for operator in operators_of(graph):
                counted = counting(functools.partial(run_operator, operator, live, graph))
                if is_worth_measuring(operator):
                    events[key_of(operator, graph)] = counted
    finally:
        torch.set_num_threads(before)
    return events


def summarise(measured: Mapping[str, Measured], unseen: str, cores: int) -> dict[str, Any]:
    """What the models know of times that they have not seen."""
    test = measured[unseen]
    training = [each for network, each in measured.items() if network != unseen]
    return {
        "networks": {network: climbs(each, cores) for network, each in measured.items()},
        "regression": {family: _regression(family, training, test) for family in FAMILIES},
        "roofline": _roofline(training, test, cores),
    }


def climbs(measured: Measured, cores: int) -> dict[str, Any]:
    """What climbs with interval 1 find: they measure everything, so what they have not seen is the second time."""
    best: dict[str, Threads] = {}
    predicted: list[float] = []
    actual: list[float] = []
    for operator, times in measured.first.items():
        climb = HillClimb(cores, interval=1, caches=False)
        while (case := climb.next_placement()) is not None:
            climb.report(case, times[case])
        best[operator] = climb.best
        predicted += [Curve(climb.measured).time_s(case) for case in times]
        actual += [measured.again[operator][case] for case in times]
    chosen_s = sum(measured.again[operator][case] for operator, case in best.items())
    uniform_s = {n: sum(times[Threads(n)] for times in measured.again.values()) for n in range(1, cores + 1)}
    counts = [case.threads for case in best.values()]
    return {
        "operators": len(best),
        "best": {str(n): counts.count(n) for n in range(1, cores + 1)},
        "spread": spread(list(measured.spread.values()), 4),
        "again": scored(predicted, actual),
        "ms_by_threads": {str(n): round(1e3 * seconds, 3) for n, seconds in uniform_s.items()},
        "ms_with_best": round(1e3 * chosen_s, 3),
    }


def fit_roofline(measured: Sequence[Measured], cores: int) -> Roofline:
    """A roofline from operators with one thread: what all but the fastest tenth reach, and the shortest time.

    The fastest tenth is left out so that a few lucky measurements decide nothing.
    """
    seen = [(each.works[name], times[ONE]) for each in measured for name, times in each.first.items()]
    latency_s = min(seconds for _, seconds in seen)
    peak = _high([work.flops / seconds for work, seconds in seen])
    bandwidth = _high([work.bytes_moved / seconds for work, seconds in seen])
    return Roofline(cores * peak, cores * bandwidth, latency_s=latency_s, cores=cores)


def _times(
    subject: BoundStep, threads: Sequence[int], repeats: int
) -> tuple[dict[str, dict[Threads, float]], dict[str, float]]:
    """Medians over repeats, and over operators of the same key; and the spread with one thread."""
    profile = measure(subject, threads=threads, repeats=repeats, cache=False)
    places: dict[str, list[int]] = {}
    for place, operator in enumerate(operators_of(subject.graph)):
        if is_worth_measuring(operator):
            places.setdefault(key_of(operator, subject.graph), []).append(place)
    times = {
        key: {Threads(n): statistics.median(profile.times[n][place].median_s for place in those) for n in threads}
        for key, those in places.items()
    }
    spread = {
        key: statistics.median(profile.times[1][p].spread_s / profile.times[1][p].median_s for p in those)
        for key, those in places.items()
    }
    return times, spread


def _regression(family: str, training: Sequence[Measured], test: Measured) -> dict[str, Any]:
    seen = {
        f"{number} {name}": (each.profile(name), each.again[name])
        for number, each in enumerate(training)
        for name in each.first
    }
    known = Operators({name: pair[0] for name, pair in seen.items()}, {name: pair[1] for name, pair in seen.items()})
    elsewhere = {name for each in training for name in each.first}  # some operators are in all networks
    unseen = [name for name in test.first if name not in elsewhere]
    asked = Operators({name: test.profile(name) for name in unseen}, {name: test.again[name] for name in unseen})
    return score_family(family, known, asked, [ONE])


def _roofline(training: Sequence[Measured], test: Measured, cores: int) -> dict[str, Any]:
    machine = fit_roofline(training, cores)
    pairs = [
        (machine.time_s(test.works[name].flops, test.works[name].bytes_moved, case.threads), seconds)
        for name, times in test.again.items()
        for case, seconds in times.items()
    ]
    return {
        **scored([pair[0] for pair in pairs], [pair[1] for pair in pairs]),
        "gflops_per_s": round(machine.peak_flops_per_s / 1e9, 1),
        "gbytes_per_s": round(machine.bandwidth_bytes_per_s / 1e9, 1),
        "latency_us": round(1e6 * machine.latency_s, 2),
    }


def _high(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 9 // 10 - (len(values) % 10 == 0)]
