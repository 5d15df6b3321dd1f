"""Executors with their own thread teams: by number, and against queues (Tang et al., Figure 6, Table 2)."""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.costs.machine import Saturation
from benchmarks.manycore.machines import TEAM_CORES, durations, share_of_memory, team
from benchmarks.manycore.simulator import simulate_operators
from benchmarks.manycore.steps import Step
from bow.schedule.scheduler import ListScheduler, OperatorScheduler, Start, critical_path

TABLE_2_SHAPES = ((2, 32), (4, 16), (8, 8), (16, 4), (32, 2))

# Numbers of executors and their threads in the paper for one network only: as many as operators run in parallel
EXTRA = {"pathnet": (6, 10), "googlenet": (3, 10)}


def shapes(network: str) -> list[tuple[int, int]]:
    """Return the numbers of executors and threads in Figure 6."""
    uniform = [(count, TEAM_CORES // count) for count in (2, 4, 8, 16, 32)]
    return sorted([*uniform, EXTRA[network]] if network in EXTRA else uniform)


def sequential_ns(machine: Saturation, step: Step) -> int:
    """Return the time of a step with a single executor with all threads."""
    return sum(durations(machine, step, team(TEAM_CORES)))


def critical_first(step: Step, executors: int, times: Sequence[int]) -> ListScheduler:
    """Graphi's scheduler: the ready operator with the longest path to the end first."""
    return ListScheduler(step.dependencies, executors, critical_path(step.dependencies, times).levels)


def first_come(step: Step, executors: int) -> ListScheduler:
    """One queue, in the order in which operators became ready."""
    return ListScheduler(step.dependencies, executors)


def at_random(step: Step, executors: int, seed: int) -> ListScheduler:
    """Any ready operator: the schedulers of TensorFlow and MXNet according to section 4.3."""
    draw = random.Random(seed)
    return ListScheduler(step.dependencies, executors, [draw.random() for _ in step.works])


def taking(times: Sequence[int]) -> Callable[[Start], int]:
    """Durations for a simulation: those of the operators, by number."""
    return lambda start: times[start.operator]


def simulated_ns(scheduler: OperatorScheduler, times: Sequence[int], dispatch_ns: int = 0, polling: int = 1) -> int:
    timeline = simulate_operators(scheduler, taking(times), dispatch_ns=dispatch_ns, polling=polling)
    return round(1e9 * timeline.makespan)


def critical_ns(step: Step, executors: int, times: Sequence[int], dispatch_ns: int = 0) -> int:
    """Return the simulated time of a step with critical path first."""
    return simulated_ns(critical_first(step, executors, times), times, dispatch_ns)


def speedup_row(machine: Saturation, step: Step, executors: int, threads: int, before_ns: int) -> dict[str, Any]:
    """Speed-up of critical path first over a step that took `before_ns`."""
    first = critical_ns(step, executors, durations(machine, step, team(threads)))
    return {"executors": executors, "threads": threads, "speedup": round(before_ns / first, 4)}


def sweep(machine: Saturation, step: Step, tried: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Speed-ups of critical path first and of first come, first served, by number of executors."""
    before = sequential_ns(machine, step)
    rows = []
    for executors, threads in tried:
        times = durations(machine, step, team(threads))
        first = critical_ns(step, executors, times)
        queue = simulated_ns(first_come(step, executors), times)
        rows.append(
            {
                "executors": executors,
                "threads": threads,
                "ms": round(first / 1e6, 4),
                "speedup": round(before / first, 4),
                "over_first_come": round(first / queue, 4),
            }
        )
    return rows


def fastest(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the shape with the highest speed-up; of ties the one with fewer executors."""
    best = max(rows, key=lambda row: (row["speedup"], -row["executors"]))
    return best["executors"], best["threads"]


def held_to_shares(machine: Saturation, step: Step, tried: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Speed-ups if every executor is limited to its share of the memory bandwidth.

    The machine model lets every concurrent operator use the full bandwidth; this is the opposite extreme.
    """
    before = sequential_ns(machine, step)
    return [speedup_row(share_of_memory(machine, count), step, count, threads, before) for count, threads in tried]


def compare_queues(
    machine: Saturation, step: Step, dispatch_ns: Sequence[int], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Time of a step with critical path first, relative to that with a queue, for each shape of Table 2."""
    rows = []
    for executors, threads in TABLE_2_SHAPES:
        times = durations(machine, step, team(threads))
        ratios = {}
        # An executor that polls a queue blocks all others: dispatching an operator costs that for each of them.
        for cost in dispatch_ns:
            first = critical_ns(step, executors, times, cost)
            queue = simulated_ns(first_come(step, executors), times, cost, polling=executors)
            ratios[str(cost)] = round(first / queue, 4)
        first = critical_ns(step, executors, times)
        drawn = [first / simulated_ns(at_random(step, executors, seed), times) for seed in seeds]
        rows.append(
            {
                "executors": executors,
                "threads": threads,
                "queue": ratios,
                "random": {
                    "median": round(statistics.median(drawn), 4),
                    "low": round(min(drawn), 4),
                    "high": round(max(drawn), 4),
                },
            }
        )
    return rows
