"""Sensitivity of the results to the parameters of the machine, varied one at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.costs.machine import Saturation
from benchmarks.manycore.curves import learn
from benchmarks.manycore.executors import critical_ns, fastest, first_come, sequential_ns, simulated_ns, speedup_row
from benchmarks.manycore.machines import VARIATIONS, durations, team
from benchmarks.manycore.steps import Step
from benchmarks.manycore.strategies import Plan, recommended, simulate_plan, try_pairs

USUAL_PAIRS = ((1, 34), (2, 34), (3, 22), (4, 16))  # candidates for the manual optimum


def machines(machine: Saturation, factors: Sequence[float]) -> Iterator[tuple[str, float, Saturation]]:
    """Yield parameter, factor, and the modified machine; first the unmodified one."""
    yield "none", 1.0, machine
    for parameter, varied in VARIATIONS.items():
        for factor in factors:
            yield parameter, factor, varied(machine, factor)


def of_executors(
    machine: Saturation,
    adapt: Callable[[Saturation], Saturation],
    step: Step,
    tried: Sequence[tuple[int, int]],
    factors: Sequence[float],
) -> list[dict[str, Any]]:
    """The best speed-up over sequential execution, its executors, and critical path first over first come."""
    rows = []
    for parameter, factor, varied in machines(machine, factors):
        own = adapt(varied)
        before = sequential_ns(own, step)
        found = [speedup_row(own, step, *shape, before) for shape in tried]
        executors, threads = fastest(found)
        times = durations(own, step, team(threads))
        first = critical_ns(step, executors, times)
        queue = simulated_ns(first_come(step, executors), times)
        rows.append(
            {
                "parameter": parameter,
                "factor": factor,
                "executors": executors,
                "speedup": max(row["speedup"] for row in found),
                "over_first_come": round(first / queue, 4),
            }
        )
    return rows


def of_strategies(
    machine: Saturation, step: Step, noise: float, interval: int, seed: int, factors: Sequence[float]
) -> list[dict[str, Any]]:
    """Cumulative speed-ups of the strategies, and the best of a few uniform pairs."""
    rows = []
    for parameter, factor, own in machines(machine, factors):
        curves = learn(own, step, noise, interval, seed)
        before = sum(recommended(own, step))
        taken = {
            plan: 1e9 * simulate_plan(step, curves, plan)[0].makespan
            for plan in (Plan(2), Plan(3), Plan(4), Plan(3, narrow=True))
        }
        rows.append(
            {
                "parameter": parameter,
                "factor": factor,
                "1-2": round(before / taken[Plan(2)], 4),
                "3 over 1-2": round(taken[Plan(2)] / taken[Plan(3)], 4),
                "narrow 3 over 1-2": round(taken[Plan(2)] / taken[Plan(3, narrow=True)], 4),
                "4 over 3": round(taken[Plan(3)] / taken[Plan(4)], 4),
                "best pair": round(before / min(try_pairs(own, step, USUAL_PAIRS).values()), 4),
            }
        )
    return rows
