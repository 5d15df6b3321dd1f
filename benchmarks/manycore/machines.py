"""Models of the machine of both papers, and variations of its parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from benchmarks.costs.evidence import standalone
from benchmarks.costs.machine import Saturation, Scaling, Sort, Threads, Work
from benchmarks.manycore.steps import Step

CORES = 68  # of a Xeon Phi 7250; every two share a cache

CACHES = tuple(core // 2 for core in range(CORES))  # by core: its cache

# Divided among executors in Tang et al., 2018, section 7.3; the scheduler and the light executor have one core each
TEAM_CORES = 64

CONVOLUTIONS: tuple[Sort, ...] = ("convolution", "input gradient", "weight gradient")


def teams_that_stay(machine: Saturation) -> Saturation:
    """The machine of Tang et al.: threads of a team stay on their cores, and convolutions are those of LIBXSMM.

    The paper has no curve of a convolution. Those of the default machine are fitted to TensorFlow's in Liu et al.; here
    crowding and work distribution are those of the one product in the paper (Figure 2).
    """
    product = machine.scalings["product"]
    own = {
        sort: replace(machine.scalings[sort], crowding_s=product.crowding_s, grain_s=product.grain_s)
        for sort in CONVOLUTIONS
    }
    return replace(machine, scalings={**machine.scalings, **own})


def share_of_memory(machine: Saturation, executors: int) -> Saturation:
    """Limit an executor to an equal share of the memory bandwidth, independent of the others."""
    return replace(machine, bytes_per_s=machine.bytes_per_s / executors)


TEAMS_STAY, AS_IN_TENSORFLOW = "teams that stay", "convolutions as in TensorFlow"
# For Tang et al.; the first one is the default
GRAPHI_MACHINES: Mapping[str, Callable[[Saturation], Saturation]] = MappingProxyType(
    {TEAMS_STAY: teams_that_stay, AS_IN_TENSORFLOW: lambda machine: machine}
)

IN_A_STEP, BY_ITSELF = "as in a step", "as in Table II"
# For Liu et al., whose Table II includes constant milliseconds of every convolution: excluded, or included
LIU_MACHINES: Mapping[str, Callable[[Saturation], Saturation]] = MappingProxyType(
    {IN_A_STEP: lambda machine: machine, BY_ITSELF: standalone}
)


def _scaled(change: Callable[[Scaling, float], Scaling]) -> Callable[[Saturation, float], Saturation]:
    def varied(machine: Saturation, factor: float) -> Saturation:
        scalings = {sort: change(scaling, factor) for sort, scaling in machine.scalings.items()}
        return replace(machine, scalings=scalings)

    return varied


# Parameters of a machine that can be scaled, one at a time
VARIATIONS: Mapping[str, Callable[[Saturation, float], Saturation]] = MappingProxyType(
    {
        "launch": lambda machine, factor: replace(machine, launch_s=factor * machine.launch_s),
        "memory bandwidth of one thread": lambda machine, factor: replace(
            machine, thread_bytes_per_s=factor * machine.thread_bytes_per_s
        ),
        "memory bandwidth of all": lambda machine, factor: replace(machine, bytes_per_s=factor * machine.bytes_per_s),
        "arithmetic": _scaled(lambda scaling, factor: replace(scaling, flops_per_s=factor * scaling.flops_per_s)),
        "crowding": _scaled(lambda scaling, factor: replace(scaling, crowding_s=factor * scaling.crowding_s)),
        "grain": _scaled(lambda scaling, factor: replace(scaling, grain_s=factor * scaling.grain_s)),
        "serial part": _scaled(
            lambda scaling, factor: replace(scaling, serial=factor * scaling.serial, serial_s=factor * scaling.serial_s)
        ),
    }
)


def team(threads: int) -> Threads:
    """Case of an executor's team: threads work on adjacent tiles, so two of them share a cache."""
    return Threads(threads, shared=threads > 1)


def durations(machine: Saturation, step: Step, case: Threads) -> list[int]:
    """Return nanoseconds by operator in a case, without noise."""
    quiet = replace(machine, noise=0.0)
    return by_work(step.works, lambda work: nanoseconds(quiet, work, case))


def nanoseconds(machine: Saturation, work: Work, case: Threads) -> int:
    return round(1e9 * machine.time_s(work.flops, work.bytes_moved, work.kind, case))


def by_work(works: Sequence[Work], of: Callable[[Work], int]) -> list[int]:
    """Apply a function to the work of every operator, once for equal ones."""
    found = {work: of(work) for work in dict.fromkeys(works)}
    return [found[work] for work in works]
