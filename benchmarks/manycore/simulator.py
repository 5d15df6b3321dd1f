"""Simulate operators with contention for a queue, and with two hardware threads per core."""

import heapq
import itertools
import math
from collections.abc import Callable
from fractions import Fraction

from bow.schedule.scheduler.protocol import OperatorScheduler, Start, places_of
from bow.schedule.timeline import Span, Timeline


def simulate_operators(
    scheduler: OperatorScheduler,
    duration_ns: Callable[[Start], int],
    *,
    dispatch_ns: int = 0,
    polling: int = 1,
    siblings_factor: float = 1.0,
) -> Timeline:
    """Simulate the timeline of a scheduler's decisions.

    Operators that finish at the same time are reported in the order of their numbers, so that the same decisions
    always have the same timeline.

    Dispatching an operator costs `dispatch_ns * polling`, and dispatches are serialised: this models a locked queue
    for which all polling executors compete. With one queue for all executors `polling` is their number; with
    a central scheduler that alone accesses the queue, and fills a buffer of each executor, it is 1. The paper says that
    contention grows with the number of executors; linear growth is an assumption of this model.

    Operators that share a core through its two hardware threads both take `siblings_factor` times as long while they
    do.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.3.
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D, strategy 4.
    """
    machine = _SimulatedMachine(duration_ns, dispatch_ns * polling, siblings_factor)
    spans: list[Span] = []
    for start in scheduler.start(0):
        machine.give(start)
    while (ended := machine.next_end()) is not None:
        start = ended.start
        name = str(start.operator)
        details = {"operator": start.operator, "threads": start.threads}
        spans += [Span(name, place, ended.begins_ns, ended.ends_ns, details=details) for place in places_of(start)]
        for start in scheduler.finished(ended.start.operator, machine.now_ns):
            machine.give(start)
    assert scheduler.done
    return Timeline(sorted(spans, key=lambda span: span.start_ns))  # of equal starts, the first to end comes first


class _Execution:
    def __init__(self, start: Start, begins_ns: int, duration_ns: int) -> None:
        self.start = start
        self.begins_ns = begins_ns
        self.ends_ns = begins_ns + duration_ns  # unless its speed changes
        self.slowness = Fraction(1)  # current factor on its duration
        self.over = False
        self._since_ns = begins_ns
        self._left_ns = Fraction(duration_ns)

    def go_on(self, now_ns: int, slowness: Fraction) -> None:
        """Change the speed: the remaining time is multiplied by `slowness`."""
        self._left_ns -= (now_ns - self._since_ns) / self.slowness
        self._since_ns, self.slowness = now_ns, slowness
        self.ends_ns = now_ns + math.ceil(self._left_ns * slowness)


class _SimulatedMachine:
    """Runs operators, and determines the next one to end; of ties the lowest number."""

    def __init__(self, duration_ns: Callable[[Start], int], dispatch_ns: int, siblings_factor: float) -> None:
        self._duration_ns = duration_ns
        self._dispatch_ns = dispatch_ns
        self._dispatcher_free_ns = 0
        self._factor = Fraction(siblings_factor).limit_denominator(1_000_000)  # 1.3 becomes 13/10: ends are exact
        self._events: list[tuple[int, bool, int, int, _Execution]] = []  # time, is it an end, operator, serial number
        self._serial = itertools.count()
        self._holders: dict[tuple[int, bool], _Execution] = {}  # by core, and whether on its second hardware thread
        self.now_ns = 0

    def give(self, start: Start) -> None:
        """Start an operator, as soon as it has been dispatched."""
        begins_ns = self.now_ns
        if self._dispatch_ns:
            begins_ns = self._dispatcher_free_ns = max(self._dispatcher_free_ns, begins_ns) + self._dispatch_ns
        self._note(begins_ns, False, _Execution(start, begins_ns, self._duration_ns(start)))

    def next_end(self) -> _Execution | None:
        """Advance time until an operator ends; None: none is running."""
        while self._events:
            when_ns, is_end, _, _, execution = heapq.heappop(self._events)
            if is_end and (execution.over or when_ns != execution.ends_ns):
                continue  # outdated: its speed has changed
            self.now_ns = when_ns
            execution.over = is_end
            self._occupy(execution, begins=not is_end)
            if is_end:
                return execution
            self._note(execution.ends_ns, True, execution)
        return None

    def _note(self, when_ns: int, is_end: bool, execution: _Execution) -> None:
        heapq.heappush(self._events, (when_ns, is_end, execution.start.operator, next(self._serial), execution))

    def _occupy(self, execution: _Execution, begins: bool) -> None:
        """Mark an operator's cores as occupied or free, and update the speed of operators on the same cores."""
        start = execution.start
        for core in start.cores:
            if begins:
                self._holders[core, start.sibling] = execution
            else:
                del self._holders[core, start.sibling]
        found = (self._holders.get((core, not start.sibling)) for core in start.cores)
        others = dict.fromkeys(other for other in found if other is not None)
        for each in [execution, *others] if begins else others:
            self._set_speed(each)

    def _set_speed(self, execution: _Execution) -> None:
        """Set an operator's speed to that of its slowest thread."""
        start = execution.start
        shares = any((core, not start.sibling) in self._holders for core in start.cores)
        slowness = self._factor if shares else Fraction(1)
        if slowness != execution.slowness:
            execution.go_on(self.now_ns, slowness)
            self._note(execution.ends_ns, True, execution)
