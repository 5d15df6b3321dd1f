"""Runs the operators of a step in simulated time, as a scheduler says."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from bow.schedule import Span, Timeline
from bow.schedule.simulator.machine import Machine, Run, S, Start

S_co = TypeVar("S_co", bound=Start, covariant=True)


class Scheduler(Protocol[S_co]):
    """Decides what runs when operators finish."""

    @property
    def done(self) -> bool: ...  # noqa: D102

    def start(self, now_ns: int = 0) -> Sequence[S_co]: ...  # noqa: D102

    def finished(self, operator: int, now_ns: int = 0) -> Sequence[S_co]: ...  # noqa: D102


def simulate_operators(
    scheduler: Scheduler[S],
    duration_ns: Callable[[S], int],
    names: Sequence[str] | None = None,
    *,
    dispatch_ns: int = 0,
    polling: int = 1,
    siblings_factor: float = 1.0,
) -> Timeline:
    """When a scheduler would have what run where.

    Operators that finish at the same moment are heard of in the order of their numbers, so that the same decisions
    always give the same timeline.

    Giving out an operator costs `dispatch_ns * polling`, and operators are given out one after another: a queue that is
    locked, and for which as many executors compete as poll it. With one queue for all executors `polling` is their
    number; a central scheduler that alone takes from the queue, and puts operators into a buffer of each executor, has
    polling=1. That contention grows with the number of executors is in the paper; that it grows linearly is this model.

    An operator that shares a core with one on the core's second hardware thread takes `siblings_factor` times as long
    while it does, as does the other one.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.3.
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D, strategy 4.
    """
    machine = Machine(duration_ns, dispatch_ns * polling, siblings_factor)
    spans: list[Span] = []
    for start in scheduler.start(0):
        machine.give(start)
    while (ended := machine.next_end()) is not None:
        spans.extend(_spans(ended, names))
        for start in scheduler.finished(ended.start.operator, machine.now_ns):
            machine.give(start)
    assert scheduler.done
    return Timeline(sorted(spans, key=lambda span: span.start_ns))  # of equal starts the first that ends


def _spans(run: Run[S], names: Sequence[str] | None) -> list[Span]:
    start = run.start
    name = str(start.operator) if names is None else names[start.operator]
    details = {"operator": start.operator, "threads": start.threads}
    return [Span(name, place, run.begins_ns, run.ends_ns, details=details) for place in _places(start)]


def _places(start: Start) -> list[str]:
    if not start.cores:
        return [f"executor {start.executor}"]
    return [f"core {core} thread 1" if start.sibling else f"core {core}" for core in start.cores]
