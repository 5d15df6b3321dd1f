"""What a regression knows of an operator in a case: performance events, counted or computed."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.cost_models.work import Work
from bow.errors import SettingError
from bow.schedule.climbing import Threads

INSTRUCTIONS = "instructions"
"""The event that all others are divided by."""

PAPERS = ("cycles", "cache_misses", "cache_accesses", "l1_hits")
"""The four that Liu et al. chose from 26, besides the time."""

LINE_BYTES, VECTOR_BYTES, FLOAT_BYTES = 64, 64, 4
CLOCK_HZ, CACHE_BYTES = 1.4e9, 2**20


@dataclass(frozen=True)
class Sample:
    """One run of an operator in one case, as a regression sees it.

    Attributes:
        time_s: seconds that it took.
        events: how often each happened, by name; `instructions` among them.

    Example:
        >>> Sample(1e-3, {"instructions": 2e6, "cycles": 3e6}).normalised()
        {'cycles': 1.5}
    """

    time_s: float
    events: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.events.get(INSTRUCTIONS, 0) > 0:
            raise SettingError(f"events need {INSTRUCTIONS} above 0 to be divided by, got {dict(self.events)}")

    def normalised(self) -> dict[str, float]:
        """The events for each instruction, so that operators of any length can be compared."""
        instructions = self.events[INSTRUCTIONS]
        return {name: count / instructions for name, count in self.events.items() if name != INSTRUCTIONS}


def computed_events(work: Work, case: Threads, time_s: float) -> dict[str, float]:
    """Stand-ins for counted events where a machine counts none, from an operator's work and its measured time.

    They go by the names of what they stand for, on cores with vectors of 64 bytes: `instructions` are multiply-adds,
    loads and stores of vectors; `cycles` the time of all threads at 1.4 GHz; `cache_accesses` the cache lines moved;
    `cache_misses` those beyond what the caches in use hold (1 MiB each); `l1_hits` the operands of arithmetic that no
    line is fetched for. `flops` and `bytes` are as they are. Unlike counted ones they are exact.

    Example:
        >>> events = computed_events(Work("aten.mm.default", 6.4e9, 6.4e7), Threads(2), 1e-2)
        >>> sorted(events)
        ['bytes', 'cache_accesses', 'cache_misses', 'cycles', 'flops', 'instructions', 'l1_hits']
        >>> events["cycles"], events["cache_accesses"]
        (28000000.0, 1000000.0)
    """
    lines = work.bytes_moved / LINE_BYTES
    vectors = VECTOR_BYTES / FLOAT_BYTES
    caches = -(-case.threads // 2) if case.shared else case.threads
    return {
        INSTRUCTIONS: max(1.0, work.flops / (2 * vectors) + work.bytes_moved / VECTOR_BYTES),
        "cycles": time_s * CLOCK_HZ * case.threads,
        "cache_accesses": lines,
        "cache_misses": max(0.0, lines - caches * CACHE_BYTES / LINE_BYTES),
        "l1_hits": max(0.0, work.flops / vectors - lines),
        "flops": work.flops,
        "bytes": work.bytes_moved,
    }
