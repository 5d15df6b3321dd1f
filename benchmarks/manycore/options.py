"""Further options that Graphi's authors tried, in simulated time (Tang et al., section 6, and 5.2)."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.costs.machine import Saturation, sort_of
from benchmarks.manycore.executors import critical_ns, simulated_ns
from benchmarks.manycore.machines import TEAM_CORES, durations, team
from benchmarks.manycore.schedulers import TeamScheduler
from benchmarks.manycore.steps import Step
from bow.schedule.scheduler import ListScheduler, Start, critical_path
from bow.schedule.scheduler.corun import Times
from bow.schedule.scheduler.protocol import simulate_operators

# Executors of three sizes, as in the paper's example, which use all cores
TEAMS = ((32, 16, 8, 8), (16, 16, 8, 8, 4, 4, 4, 4))

# Relative time of an operator whose input is in its executor's cache: an assumption. The paper found a modest gain for
# element-wise operators, and none for products
KEPT = (0.9, 0.8)

HANDOVER_NS = (0, 1000, 5000)  # time to pass an operator to another executor: an assumption

# Milliseconds of context switches when the number of executors changes, lower and upper value (section 6)
CHANGE_MS = (10.0, 30.0)


def try_options(machine: Saturation, step: Step, shape: tuple[int, int], counts: Sequence[int]) -> dict[str, Any]:
    """The effect of each option on a step with critical path first."""
    return {
        "executors": shape[0],
        "threads": shape[1],
        "sizes": [team_sizes(machine, step, shape, teams) for teams in TEAMS],
        "changing": changing_number(machine, step, shape, counts),
        "preferred": [preferred_executor(machine, step, shape, kept) for kept in KEPT],
        "small": [small_at_once(machine, step, shape, handover_ns) for handover_ns in HANDOVER_NS],
    }


def team_sizes(machine: Saturation, step: Step, shape: tuple[int, int], teams: Sequence[int]) -> dict[str, Any]:
    """Executors of several sizes, and operators that prefer the size that they use efficiently."""
    sizes = sorted(set(teams))
    by_size = {size: durations(machine, step, team(size)) for size in sizes}
    by_operator = [{size: by_size[size][each] for size in sizes} for each in range(len(step))]
    prefers = classes_by_scaling(by_operator, sizes)
    usual = [own[sizes[wanted]] for own, wanted in zip(by_operator, prefers, strict=True)]
    levels = critical_path(step.dependencies, usual).levels
    scheduler = TeamScheduler(step.dependencies, len(teams), levels, threads=teams, prefers=prefers)
    spent = 0

    def duration(start: Start) -> int:
        nonlocal spent
        spent += start.threads * by_size[start.threads][start.operator]
        return by_size[start.threads][start.operator]

    makespan = simulate_operators(scheduler, duration).makespan
    symmetric = durations(machine, step, team(shape[1]))
    return {
        "teams": list(teams),
        "time": round(1e9 * makespan / critical_ns(step, shape[0], symmetric), 4),
        "thread_time": round(spent / (shape[1] * sum(symmetric)), 4),
    }


def classes_by_scaling(times: Sequence[Times], sizes: Sequence[int], efficiency: float = 0.5) -> list[int]:
    """Return the class of executors for each operator, by its scaling: `prefers` of a list scheduler.

    That is the largest team whose threads have at least `efficiency` times the throughput of those of the smallest:
    `smallest * time(smallest) >= efficiency * size * time(size)`. The paper classifies operators by their scaling,
    without saying how.

    Example:
        >>> classes_by_scaling([{1: 80, 2: 45, 8: 20}, {1: 80, 2: 44, 8: 41}], sizes=[1, 2, 8])
        [2, 1]

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 6.
    """
    smallest = sizes[0]

    def scales(own: Times, size: int) -> bool:
        return smallest * own[smallest] >= efficiency * size * own[size]

    return [max(number for number, size in enumerate(sizes) if number == 0 or scales(own, size)) for own in times]


def changing_number(machine: Saturation, step: Step, shape: tuple[int, int], counts: Sequence[int]) -> dict[str, Any]:
    """The best numbers of executors for forward and backward pass, each with all cores divided among them."""
    passes = {count: durations(machine, step, team(TEAM_CORES // count)) for count in counts}
    before_ns = critical_ns(step, shape[0], durations(machine, step, team(shape[1])))
    taken = {(ahead, behind): _changing_ns(step, ahead, behind, passes) for ahead in counts for behind in counts}
    (ahead, behind), best_ns = min(taken.items(), key=lambda item: item[1])
    return {
        "forward": ahead,
        "backward": behind,
        "time": round(best_ns / before_ns, 4),
        "saved_ms": round((before_ns - best_ns) / 1e6, 4),
    }


def _changing_ns(step: Step, ahead: int, behind: int, passes: dict[int, list[int]]) -> int:
    forward = sum(step.forward)
    times = [passes[ahead if is_forward else behind][each] for each, is_forward in enumerate(step.forward)]
    levels = critical_path(step.dependencies, times).levels
    scheduler = TeamScheduler(
        step.dependencies, max(ahead, behind), levels, open=lambda finished: ahead if finished < forward else behind
    )
    return simulated_ns(scheduler, times)


def preferred_executor(machine: Saturation, step: Step, shape: tuple[int, int], kept: float) -> dict[str, Any]:
    """Operators prefer the executor that has their input in its cache, if this speeds up element-wise ones."""
    executors, threads = shape
    times = durations(machine, step, team(threads))
    levels = critical_path(step.dependencies, times).levels
    taken = {}
    for stay in (False, True):
        scheduler = ListScheduler(step.dependencies, executors, levels, stay=stay)
        taken[stay] = simulate_operators(scheduler, with_caches(step, times, kept)).makespan
    return {"kept": kept, "time": round(taken[True] / taken[False], 4)}


def with_caches(step: Step, times: Sequence[int], kept: float) -> Callable[[Start], int]:
    """Durations that depend on cached inputs; calls have to be made in the order in which operators start."""
    ran_on: dict[int, int] = {}

    def duration(start: Start) -> int:
        operator = start.operator
        ran_on[operator] = start.executor
        near = any(ran_on[each] == start.executor for each in step.dependencies[operator])
        gains = near and sort_of(step.works[operator].kind) == "elementwise"
        return round(kept * times[operator]) if gains else times[operator]

    return duration


def small_at_once(machine: Saturation, step: Step, shape: tuple[int, int], handover_ns: int) -> dict[str, Any]:
    """Operators that do not scale run with one thread on the executor where they became ready.

    They are not passed to another executor, unlike all others. Those that are ready at the start wait in the queue, or
    run on the light executor.
    """
    executors, threads = shape
    alone = durations(machine, step, team(1))
    shared = durations(machine, step, team(threads))
    small = {each for each, time in enumerate(alone) if time <= shared[each]}
    queued = [time + handover_ns for time in shared]
    mixed = [alone[each] if each in small else time for each, time in enumerate(queued)]
    levels = critical_path(step.dependencies, mixed).levels
    before_ns = critical_ns(step, executors, queued)
    taken = {
        light: simulated_ns(TeamScheduler(step.dependencies, executors, levels, small=small, light=light), mixed)
        for light in (False, True)
    }
    return {
        "handover_ns": handover_ns,
        "small": len(small),
        "operators": len(step),
        "time": round(taken[False] / before_ns, 4),
        "time_with_light": round(taken[True] / before_ns, 4),
    }
