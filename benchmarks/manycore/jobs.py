"""All simulations of one network in one size."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.costs.machine import Saturation, sort_of
from benchmarks.manycore.curves import learn
from benchmarks.manycore.diagonal import compare_diagonals
from benchmarks.manycore.executors import (
    TABLE_2_SHAPES,
    compare_queues,
    fastest,
    held_to_shares,
    sequential_ns,
    shapes,
    sweep,
)
from benchmarks.manycore.machines import AS_IN_TENSORFLOW, GRAPHI_MACHINES, LIU_MACHINES, TEAMS_STAY, durations, team
from benchmarks.manycore.options import try_options
from benchmarks.manycore.sensitivity import of_executors, of_strategies
from benchmarks.manycore.steps import Step, capture_step
from benchmarks.manycore.strategies import (
    PLANS,
    best_pair,
    counts_of,
    longest_types,
    pairs,
    recommended,
    simulate_plan,
    try_changes,
    try_plans,
    try_sharing,
)
from bow.schedule import Timeline
from bow.schedule.scheduler import critical_path

if TYPE_CHECKING:
    from benchmarks.manycore import Config

MACHINE = Saturation()

Cells: TypeAlias = dict[tuple[int, str], Timeline]  # by number of executors and scheduler: timelines of the cells

Counts: TypeAlias = dict[str, list[int]]  # by plan: number of running operators after each event


@dataclass(frozen=True)
class Done:
    network: str
    size: str
    found: dict[str, Any]  # plain values
    cells: Cells  # timelines of the cells of an LSTM, for the pictures
    counts: Counts  # of a network of Liu et al., for the pictures


def all_jobs(settings: "Config") -> list[Callable[[], Done]]:
    """Return the jobs, the longest first."""
    ordered = sorted(settings.sizes, key=lambda size: (size != settings.detail, size))
    graphi = [(network, size) for network in reversed(settings.graphi) for size in ordered]
    texts_first = sorted(graphi, key=lambda job: "lstm" not in job[0])
    return [
        *(functools.partial(executors_job, network, size, settings) for network, size in texts_first),
        *(functools.partial(strategies_job, network, settings) for network in reversed(settings.liu)),
    ]


def executors_job(network: str, size: str, settings: "Config") -> Done:
    """Simulate a network of Tang et al.; in detail in one size."""
    step = capture_step(network, size)
    machine = GRAPHI_MACHINES[TEAMS_STAY](MACHINE)
    tried = shapes(network)
    rows = sweep(machine, step, tried)
    found = {**_sizes(step), "executors": rows, "shares": held_to_shares(machine, step, tried)}
    if any(sort_of(kind) == "convolution" for kind in set(step.kinds)):
        found["tensorflow"] = sweep(GRAPHI_MACHINES[AS_IN_TENSORFLOW](MACHINE), step, tried)
    cells: Cells = {}
    if size == settings.detail:
        best = fastest(rows)
        counts = [count for count, _ in TABLE_2_SHAPES[:4] if best[0] / 2 <= count <= 2 * best[0]]
        found["queues"] = compare_queues(machine, step, settings.dispatch_ns, settings.draws)
        found["options"] = try_options(machine, step, best, counts)
        found["sensitivity"] = of_executors(
            MACHINE, GRAPHI_MACHINES[TEAMS_STAY], step, TABLE_2_SHAPES[:4], settings.factors
        )
        if network == "lstm":
            found["diagonal"], cells = compare_diagonals(machine, step, TABLE_2_SHAPES[:4], settings.draws)
    return Done(network, size, found, cells, {})


def _sizes(step: Step) -> dict[str, Any]:
    """Statistics of a step, on the machine of Tang et al."""
    machine = GRAPHI_MACHINES[TEAMS_STAY](MACHINE)
    alone = critical_path(step.dependencies, durations(machine, step, team(8)))
    return {
        "operators": len(step),
        "sequential_ms": round(sequential_ns(machine, step) / 1e6, 4),
        "parallelism_with_8": round(alone.parallelism, 2),
    }


def strategies_job(network: str, settings: "Config") -> Done:
    """Simulate a network of Liu et al., on both machines."""
    step = capture_step(network, settings.size)
    found: dict[str, Any] = {"operators": len(step)}
    for name, adapt in LIU_MACHINES.items():
        machine = adapt(MACHINE)
        curves = learn(machine, step, settings.noise, settings.interval, settings.seed)
        found[name] = {
            "recommended_ms": round(sum(recommended(machine, step)) / 1e6, 4),
            "plans": try_plans(machine, step, curves),
            "sharing": try_sharing(step, curves),
            "changes": try_changes(machine, step, curves),
            "best_pair": best_pair(machine, step, list(pairs())),
            "longest": longest_types(machine, step, curves),
        }
    found["sensitivity"] = of_strategies(
        MACHINE, step, settings.noise, settings.interval, settings.seed, settings.factors
    )
    curves = learn(MACHINE, step, settings.noise, settings.interval, settings.seed)
    counts = {plan.name: counts_of(simulate_plan(step, curves, plan)[0]) for plan in PLANS[2:4]}
    return Done(network, settings.size, found, {}, counts)
