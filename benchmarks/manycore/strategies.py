"""Liu et al.'s strategies, compared with a uniform number of threads (Figures 3 and 4, Tables I and VI)."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.costs.machine import Saturation, Threads, Work
from benchmarks.manycore.curves import Curves, Teams
from benchmarks.manycore.executors import first_come, taking
from benchmarks.manycore.machines import CACHES, CORES, by_work, nanoseconds
from benchmarks.manycore.schedulers import Seated, fit
from benchmarks.manycore.simulator import simulate_operators
from benchmarks.manycore.steps import Step
from bow.schedule import Timeline
from bow.schedule.picture import co_running, mean_co_running
from bow.schedule.scheduler import CoRunScheduler
from bow.schedule.scheduler.corun import Cores, Strategy, threads_by_kind

# Slow-down of an operator that shares its cores with another (Liu et al., Table III: two operators that both use all
# cores, on hyper-threads, are 1.03 times as fast as in sequence)
SHARED = 2 / 1.03

# Factors to try: the paper has none for a small operator next to a large one
SHARINGS = (1.0, 1.1, 1.25, 1.5, SHARED)

# Costs of changing the number of threads; the paper has no number
CHANGES_NS = (0, 10_000, 30_000, 100_000, 300_000)

# Where the number of threads changes: two interpretations of strategy 2
OF_A_CORE, OF_A_TYPE = "of a core", "of a type"

INTER = (1, 2, 3, 4, 5, 6, 8)
# Pairs of inter-op and intra-op parallelism in Table I for which two hardware threads per core suffice
TABLE_I = ((1, 34), (1, 68), (2, 34), (2, 68), (4, 34))

TOP = 10


@dataclass(frozen=True)
class Plan:
    """A combination of strategies."""

    strategy: Strategy  # the last one to apply
    narrow: bool = False  # bow's addition to strategy 3

    @property
    def name(self) -> str:
        """Name in tables: `1`, `1-2`, `1-3`, `1-3, narrow`."""
        counted = "1" if self.strategy == 1 else f"1-{self.strategy}"
        return f"{counted}, narrow" if self.narrow else counted


PLANS = (Plan(1), Plan(2), Plan(3), Plan(4), Plan(3, narrow=True), Plan(4, narrow=True))


def recommended(machine: Saturation, step: Step) -> list[int]:
    """Return nanoseconds by operator with all cores, as TensorFlow's guide recommends; run in sequence."""
    return by_work(step.works, lambda work: nanoseconds(machine, work, Threads(CORES, shared=True)))


def simulate_plan(
    step: Step, curves: Curves, plan: Plan, *, sharing: float = SHARED, change_ns: int = 0, whose: str = OF_A_CORE
) -> tuple[Timeline, int]:
    """Simulate a step with some of the strategies; returns its timeline, and the number of thread-count changes."""
    scheduler = CoRunScheduler(
        step.dependencies, curves.predicted, step.kinds, CORES, plan.strategy, narrow=plan.narrow
    )
    teams = Teams(curves.actual, change_ns, step.kinds if whose == OF_A_TYPE else None)
    timeline = simulate_operators(scheduler, teams, siblings_factor=sharing)
    return timeline, teams.changes


def try_plans(machine: Saturation, step: Step, curves: Curves) -> dict[str, Any]:
    """Simulate every plan: milliseconds, speed-up over the recommendation, and number of concurrent operators."""
    before = sum(recommended(machine, step))
    found = {}
    for plan in PLANS:
        timeline, changes = simulate_plan(step, curves, plan)
        counts = counts_of(timeline)
        found[plan.name] = {
            "ms": round(1e3 * timeline.makespan, 4),
            "speedup": round(before / 1e9 / timeline.makespan, 4),
            "together": round(statistics.fmean(counts), 3),
            "together_by_time": round(mean_co_running(timeline), 3),
            "most_together": max(counts),
            "changes": changes,
        }
    return found


def counts_of(timeline: Timeline) -> list[int]:
    """Return the number of running operators after every event but the last: Figure 4."""
    return [count for _, count in co_running(timeline)][:-1]


def try_sharing(step: Step, curves: Curves) -> dict[str, Any]:
    """Speed-up of strategy 4 over strategy 3 by the cost of sharing a core, for both variants of strategy 3."""
    found: dict[str, Any] = {}
    for narrow in (False, True):
        without, _ = simulate_plan(step, curves, Plan(3, narrow))
        found[Plan(4, narrow).name] = {
            f"{sharing:.2f}": round(
                without.makespan / simulate_plan(step, curves, Plan(4, narrow), sharing=sharing)[0].makespan, 4
            )
            for sharing in SHARINGS
        }
    return found


def try_changes(machine: Saturation, step: Step, curves: Curves) -> dict[str, Any]:
    """Speed-ups of strategies 1, 1-2 and 1-3 over the recommendation, by kind and cost of changes."""
    before = sum(recommended(machine, step)) / 1e9

    def speedup(plan: Plan, change_ns: int, whose: str) -> float:
        return round(before / simulate_plan(step, curves, plan, change_ns=change_ns, whose=whose)[0].makespan, 4)

    return {
        f"{plan.name}, changes {whose}": {str(cost): speedup(plan, cost, whose) for cost in CHANGES_NS}
        for whose in (OF_A_CORE, OF_A_TYPE)
        for plan in PLANS[:3]
    }


def pairs() -> Iterator[tuple[int, int]]:
    """Yield the uniform pairs of inter-op and intra-op parallelism for which two hardware threads per core suffice."""
    return ((inter, intra) for inter in INTER for intra in range(2, CORES + 1, 2) if fit(inter, intra, CORES))


def try_pairs(machine: Saturation, step: Step, tried: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return nanoseconds of a step by pair, with one queue, first come, first served."""
    return {pair: _pair_ns(machine, step, *pair) for pair in tried}


def _pair_ns(machine: Saturation, step: Step, inter: int, intra: int) -> int:
    times = by_work(step.works, lambda work: _fastest_ns(machine, work, intra))
    queue = first_come(step, inter)
    scheduler = queue if inter * intra <= CORES else Seated(queue, intra, CORES)
    return round(1e9 * simulate_operators(scheduler, taking(times), siblings_factor=SHARED).makespan)


def _fastest_ns(machine: Saturation, work: Work, threads: int) -> int:
    """With or without shared caches, whichever is faster, as in the strategies."""
    possible = (
        [Threads(threads, shared=True)] if threads > CORES // 2 else [Threads(threads), Threads(threads, shared=True)]
    )
    return min(nanoseconds(machine, work, case) for case in possible)


def best_pair(machine: Saturation, step: Step, tried: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Speed-ups of the manual optimum and the pairs of Table I over the recommendation."""
    before = sum(recommended(machine, step))
    taken = try_pairs(machine, step, tried)
    (inter, intra), best = min(taken.items(), key=lambda item: item[1])
    return {
        "pairs": len(taken),
        "inter": inter,
        "intra": intra,
        "ms": round(best / 1e6, 4),
        "speedup": round(before / best, 4),
        "table_1": {f"{a} x {b}": round(before / taken[a, b], 4) for a, b in TABLE_I if (a, b) in taken},
    }


def longest_types(machine: Saturation, step: Step, curves: Curves) -> list[dict[str, Any]]:
    """The operator types that take longest, with the recommendation and with strategies 1 and 2."""
    before, after, counts = Counter[str](), Counter[str](), Counter(step.kinds)
    threads = threads_by_kind(curves.predicted.least, step.kinds)
    idle = Cores(CORES, CACHES)
    for operator, (kind, alone) in enumerate(zip(step.kinds, recommended(machine, step), strict=True)):
        before[kind] += alone
        apart = curves.predicted.is_better_separate(operator, threads[kind])
        after[kind] += curves.actual.ns(operator, idle.choose(threads[kind], apart))
    return [
        {
            "kind": kind,
            "count": counts[kind],
            "threads": threads[kind],
            "before_ms": round(alone / 1e6, 4),
            "after_ms": round(after[kind] / 1e6, 4),
            "speedup": round(alone / after[kind], 4),
        }
        for kind, alone in before.most_common(TOP)
    ]
