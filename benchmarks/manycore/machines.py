"""The machine of both papers as formulas, and what of it might be otherwise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from benchmarks.costs.evidence import standalone
from benchmarks.costs.machine import Saturation, Scaling, Sort, Threads, Work
from benchmarks.manycore.steps import Step

CORES = 68  # Of a Xeon Phi 7250; every two share a cache

CACHES = tuple(core // 2 for core in range(CORES))  # By core: which

# Shared out among executors in Tang et al., 2018, section 7.3; the scheduler and the light executor have one each
TEAM_CORES = 64

CONVOLUTIONS: tuple[Sort, ...] = ("convolution", "input gradient", "weight gradient")


def teams_that_stay(machine: Saturation) -> Saturation:
    """The machine of Tang et al.: threads of a team stay on their cores, and convolutions are LIBXSMM's.

    The paper shows no curve of a convolution. Those that the machine has otherwise are fitted to TensorFlow's, of Liu
    et al.; here threads crowd, and share out work, as in the one product that the paper does show (Figure 2).
    """
    product = machine.scalings["product"]
    own = {
        sort: replace(machine.scalings[sort], crowding_s=product.crowding_s, grain_s=product.grain_s)
        for sort in CONVOLUTIONS
    }
    return replace(machine, scalings={**machine.scalings, **own})


def share_of_memory(machine: Saturation, executors: int) -> Saturation:
    """What an executor has where each is held to an equal part of the memory's bandwidth, whatever the others do."""
    return replace(machine, bytes_per_s=machine.bytes_per_s / executors)


TEAMS_STAY, AS_IN_TENSORFLOW = "teams that stay", "convolutions as in TensorFlow"
# For Tang et al.; the first one is meant where none is named
GRAPHI_MACHINES: Mapping[str, Callable[[Saturation], Saturation]] = MappingProxyType(
    {TEAMS_STAY: teams_that_stay, AS_IN_TENSORFLOW: lambda machine: machine}
)

IN_A_STEP, BY_ITSELF = "as in a step", "as in Table II"
# For Liu et al., whose Table II has milliseconds of every convolution that do not scale: left out, or counted
LIU_MACHINES: Mapping[str, Callable[[Saturation], Saturation]] = MappingProxyType(
    {IN_A_STEP: lambda machine: machine, BY_ITSELF: standalone}
)


def _scaled(change: Callable[[Scaling, float], Scaling]) -> Callable[[Saturation, float], Saturation]:
    def varied(machine: Saturation, factor: float) -> Saturation:
        scalings = {sort: change(scaling, factor) for sort, scaling in machine.scalings.items()}
        return replace(machine, scalings=scalings)

    return varied


# What of a machine can be multiplied by a factor, one at a time
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
    """How a team of an executor runs: on tiles of its own, so that two threads share a cache."""
    return Threads(threads, shared=threads > 1)


def durations(machine: Saturation, step: Step, case: Threads) -> list[int]:
    """By operator: nanoseconds in a case, without noise."""
    quiet = replace(machine, noise=0.0)
    return by_work(step.works, lambda work: nanoseconds(quiet, work, case))


def nanoseconds(machine: Saturation, work: Work, case: Threads) -> int:
    """What an operator takes on a machine."""
    return round(1e9 * machine.time_s(work.flops, work.bytes_moved, work.kind, case))


def by_work(works: Sequence[Work], of: Callable[[Work], int]) -> list[int]:
    """By operator: what is found for its work, once for equal ones."""
    found = {work: of(work) for work in dict.fromkeys(works)}
    return [found[work] for work in works]
