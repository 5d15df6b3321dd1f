"""Critical path first against the queues of TensorFlow and MXNet (Tang et al., Table 2)."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.cost_models import Saturation
from benchmarks.manycore.executors import at_random, critical_first, first_come, simulated_ns
from benchmarks.manycore.machines import durations, team
from benchmarks.manycore.steps import Step

TABLE_2_SHAPES = ((2, 32), (4, 16), (8, 8), (16, 4), (32, 2))


def compare_queues(
    machine: Saturation, step: Step, dispatch_ns: Sequence[int], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """The time of a step with critical path first, over that with a queue, for each shape of Table 2.

    An executor that polls a queue keeps it from all others for `dispatch_ns`, so that giving out an operator costs that
    for every executor there is; the central scheduler is alone with its own.
    """
    rows = []
    for executors, threads in TABLE_2_SHAPES:
        times = durations(machine, step, team(threads))
        ratios = {}
        for cost in dispatch_ns:
            first = simulated_ns(critical_first(step, executors, times), times, cost)
            queue = simulated_ns(first_come(step, executors), times, cost, polling=executors)
            ratios[str(cost)] = round(first / queue, 4)
        first = simulated_ns(critical_first(step, executors, times), times)
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
