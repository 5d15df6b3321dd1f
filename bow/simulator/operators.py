"""Runs the operators of a step in simulated time, as a scheduler says."""

import heapq
from collections.abc import Callable, Sequence
from typing import Protocol

from bow.strategy import Span, Timeline


class Start(Protocol):
    """Run an operator on an executor, now."""

    @property
    def operator(self) -> int: ...  # noqa: D102

    @property
    def executor(self) -> int: ...  # noqa: D102


class Scheduler(Protocol):
    """Decides what runs when operators finish."""

    @property
    def done(self) -> bool: ...  # noqa: D102

    def start(self) -> Sequence[Start]: ...  # noqa: D102

    def finished(self, operator: int) -> Sequence[Start]: ...  # noqa: D102


def simulate_operators(
    scheduler: Scheduler,
    duration_ns: Callable[[int, int], int],
    names: Sequence[str] | None = None,
    dispatch_ns: int = 0,
) -> Timeline:
    """When a scheduler would have what run where.

    Operators that finish at the same moment are heard of in the order of their numbers, so that the same decisions
    always give the same timeline.

    Args:
        scheduler: what decides; it begins a step.
        duration_ns: by operator and executor: nanoseconds, at least 0.
        names: of the operators; None: their numbers.
        dispatch_ns: nanoseconds that giving an operator to an executor costs, one after another for all executors:
            the contention of one queue, as Graphi describes it in section 4.3.
    """
    running: list[tuple[int, int, int]] = []  # end, operator, executor
    spans: list[Span] = []
    dispatcher_free_ns = 0

    def begin(starts: Sequence[Start], now_ns: int) -> None:
        nonlocal dispatcher_free_ns
        for each in starts:
            begins_ns = now_ns
            if dispatch_ns:
                dispatcher_free_ns = max(dispatcher_free_ns, now_ns) + dispatch_ns
                begins_ns = dispatcher_free_ns
            ends_ns = begins_ns + duration_ns(each.operator, each.executor)
            heapq.heappush(running, (ends_ns, each.operator, each.executor))
            name = str(each.operator) if names is None else names[each.operator]
            spans.append(
                Span(name, f"executor {each.executor}", begins_ns, ends_ns, details={"operator": each.operator})
            )

    begin(scheduler.start(), 0)
    while running:
        ends_ns, operator, _ = heapq.heappop(running)
        begin(scheduler.finished(operator), ends_ns)
    assert scheduler.done
    return Timeline(spans)
