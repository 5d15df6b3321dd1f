"""List scheduling: ready operators by priority, or first come, first served."""

import heapq
from collections import deque
from collections.abc import Collection, Sequence

from bow.errors import ScheduleError
from bow.schedule.scheduler.protocol import ReadyOperators, Start


class ListScheduler:
    """Assigns ready operators to free executors: Graphi's scheduler (Tang et al., 2018, algorithm 1)."""

    # With the levels of `critical_path` as priorities the critical path is first; without priorities the executors
    # share one queue, the baseline of the papers. A finished operator costs O(log n) for each operator that it makes
    # ready.

    def __init__(
        self,
        dependencies: Sequence[Collection[int]],
        executors: int,
        priority: Sequence[float] | None = None,  # by operator: higher first, ties by number; None: first come
        stay: bool = False,  # prefer the executor that finished the last dependency: its cache may hold the inputs
        *,
        small: Collection[int] = (),  # run on the executor that made them ready, before anything else (section 5.2)
    ) -> None:
        count = len(dependencies)
        if executors < 1:
            raise ScheduleError(f"a schedule needs at least 1 executor, got {executors}")
        if priority is not None and len(priority) != count:
            raise ScheduleError(f"{len(priority)} priorities for {count} operators; give every operator one")
        wrong = next((index for index in sorted(small) if not 0 <= index < count), None)
        if wrong is not None:
            raise ScheduleError(f"operator {wrong} is listed in small, and the last one is {count - 1}; leave it out")
        self.executors = executors
        self._progress = ReadyOperators(dependencies)
        self._priority = priority
        self._stay = stay
        self._small = frozenset(small)
        self._begin()

    @property
    def done(self) -> bool:
        return self._progress.done

    def start(self, now_ns: int = 0) -> list[Start]:
        self._begin()
        for operator in self._progress.begin():
            self._make_ready(operator, None)
        return self._dispatch()

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        executor = self._running.pop(operator)
        for later in self._progress.finish(operator):
            self._make_ready(later, executor)
        return self._next_small_or_idle(executor) + self._dispatch()

    def _begin(self) -> None:
        self._ready: list[tuple[float, int]] = []
        self._num_ready = 0
        self._running: dict[int, int] = {}  # executor by operator
        self._made_by: dict[int, int] = {}  # by queued operator: the executor that made it ready
        self._at_once: dict[int, deque[int]] = {}  # by executor: small operators it made ready
        self._idle = (1 << self.executors) - 1  # bit set of executors, as in the paper

    def _make_ready(self, operator: int, executor: int | None) -> None:
        """Queue an operator; if small, on the executor that made it ready."""
        if executor is not None and operator in self._small:
            self._at_once.setdefault(executor, deque()).append(operator)
            return
        if executor is not None:
            self._made_by[operator] = executor
        key = float(self._num_ready) if self._priority is None else -self._priority[operator]
        self._num_ready += 1
        heapq.heappush(self._ready, (key, operator))

    def _next_small_or_idle(self, executor: int) -> list[Start]:
        """Start the executor's next small operator, or mark the executor as idle."""
        own = self._at_once.get(executor)
        if own:
            return [self._run(own.popleft(), executor)]
        self._idle |= 1 << executor
        return []

    def _dispatch(self) -> list[Start]:
        starts: list[Start] = []
        while self._ready and (suitable := self._suitable(self._ready[0][1])):
            _, operator = heapq.heappop(self._ready)
            executor = self._made_by.get(operator, -1) if self._stay else -1
            if executor < 0 or not suitable >> executor & 1:
                executor = (suitable & -suitable).bit_length() - 1  # the first
            self._idle &= ~(1 << executor)
            starts.append(self._run(operator, executor))
        return starts

    def _suitable(self, operator: int) -> int:
        """Return the preferred free executors for an operator, as a bit set."""
        return self._idle

    def _run(self, operator: int, executor: int) -> Start:
        self._running[operator] = executor
        return Start(operator, executor)
