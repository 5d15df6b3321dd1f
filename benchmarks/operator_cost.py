"""What calling one operator costs, whatever it computes: a chain of additions of one number to another."""

import time
from collections.abc import Callable
from typing import TypeAlias

import torch

from benchmarks.measure import Spread
from bow.devices import available_cores, core_sets
from bow.runtime import is_available, native

PYTHON, RUNTIME, BY_PRIORITY, HANDED_OVER = "python", "runtime", "by_priority", "handed_over"
CALLERS = {
    PYTHON: "Python, the call alone",
    RUNTIME: "the native runtime, in order",
    BY_PRIORITY: "the native runtime, by priority",
    HANDED_OVER: "the native runtime, each operator waiting for the other executor's",
}

CALLS = 10_000
REPEATS = 7

Clock: TypeAlias = Callable[[], float]


def from_python(clock: Clock = time.perf_counter) -> float:
    """Seconds that Python takes to call an ATen operator on two numbers."""
    call, one = torch.ops.aten.add.Tensor, torch.ones(1)
    began = clock()
    for _ in range(CALLS):
        call(one, one)
    return (clock() - began) / CALLS


def in_order(clock: Clock = time.perf_counter) -> float:
    """Seconds for an operator of a chain that one executor runs."""
    return _chain([list(range(CALLS))], [], clock)


def by_priority(clock: Clock = time.perf_counter) -> float:
    """Seconds for an operator of a chain that one executor runs by priority, as it becomes ready."""
    return _chain([], [0] * CALLS, clock)


def handed_over(clock: Clock = time.perf_counter) -> float:
    """Seconds for an operator of a chain that goes to and fro between two executors."""
    return _chain([list(range(0, CALLS, 2)), list(range(1, CALLS, 2))], [], clock)


def _chain(order: list[list[int]], priority: list[int], clock: Clock) -> float:
    slot = native().Slot
    job = native().Job(CALLS + 1)
    for call in range(CALLS):
        job.add_operator("aten::add", "Tensor", [slot(call), slot(0)], {}, [call + 1])
    lanes = max(1, len(order))
    job.bind(0, torch.ones(1))
    job.schedule(order, priority, lanes)
    team = native().Team(core_sets(lanes), [1] * lanes)
    job.run(team)
    began = clock()
    job.run(team)
    seconds = (clock() - began) / CALLS
    team.close()
    return seconds


def probes() -> dict[str, Callable[[], float]]:
    """By who calls: what measures the seconds for one operator, of those that this machine can do."""
    native_ones = {RUNTIME: in_order, BY_PRIORITY: by_priority} if is_available() else {}
    if native_ones and len(available_cores()) > 1:
        native_ones[HANDED_OVER] = handed_over
    return {PYTHON: from_python, **native_ones}


def measure_operator_costs() -> dict[str, Spread]:
    """Seconds for one operator, by who calls it, on one thread."""
    costs = {}
    for name, probe in probes().items():
        probe()  # warms up
        costs[name] = Spread.of([probe() for _ in range(REPEATS)])
    return costs
