"""Discrete-event simulation of a step's operators under a scheduler."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence

from bow.errors import SettingError
from bow.schedule.scheduler.protocol import OperatorScheduler, Start
from bow.schedule.timeline import Span, Timeline


def simulate_operators(
    scheduler: OperatorScheduler, duration_ns: Callable[[Start], int], names: Sequence[str] | None = None
) -> Timeline:
    """Simulate a scheduler's decisions; of simultaneous ends the lowest operator is first (Tang et al., 2018, 4.3)."""
    ends: list[tuple[int, int, int, int, Start]] = []  # end, operator, serial number, start, how it runs
    serial = itertools.count()

    def give(starts: Iterable[Start], now_ns: int) -> None:
        for start in starts:
            if (took_ns := duration_ns(start)) < 0:
                raise SettingError(f"duration_ns must be at least 0, got {took_ns} for {start}")
            heapq.heappush(ends, (now_ns + took_ns, start.operator, next(serial), now_ns, start))

    spans: list[Span] = []
    give(scheduler.start(0), 0)
    while ends:
        now_ns, operator, _, began_ns, start = heapq.heappop(ends)
        name = str(operator) if names is None else names[operator]
        details = {"operator": operator, "threads": start.threads}
        spans += [Span(name, place, began_ns, now_ns, details=details) for place in places_of(start)]
        give(scheduler.finished(operator, now_ns), now_ns)
    assert scheduler.done
    return Timeline(sorted(spans, key=lambda span: span.start_ns))  # stable: of equal starts the one that ends first


def places_of(start: Start) -> list[str]:
    if not start.cores:
        return [f"executor {start.executor}"]
    return [f"core {core} thread 1" if start.sibling else f"core {core}" for core in start.cores]
