"""Which operator of a step runs next, and on which executor."""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bow.errors import ScheduleError
from bow.scheduler.levels import followers


@dataclass(frozen=True)
class Start:
    """Run an operator on an executor, now."""

    operator: int
    executor: int


class ListScheduler:
    """Gives free executors the operators that are ready: those of the highest priority, or those that came first.

    With the levels of `critical_path` as priorities it is Graphi's scheduler, critical path first. Without
    priorities it is one queue that all executors take from, the baseline of the papers.

    All executors are alike. No operator starts before those that it depends on have finished, and none twice.

    Args:
        dependencies: by operator: those that must have run before it.
        executors: how many there are.
        priority: by operator: higher first, equal ones in the order of their numbers; None: in the order in which
            they have become ready.
        stay: an operator goes to the executor that ran one of those that it depends on, the last that finished, if
            that executor is free: what it reads may be in that executor's cache (section 6, preferred executor).

    Raises:
        ScheduleError: no executors, or not one priority for each operator.

    Example:
        >>> scheduler = ListScheduler([(), (), (0,)], executors=1, priority=[2, 3, 1])
        >>> scheduler.start()
        [Start(operator=1, executor=0)]
        >>> scheduler.finished(1)
        [Start(operator=0, executor=0)]

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, algorithm 1.
    """

    def __init__(
        self,
        dependencies: Sequence[Collection[int]],
        executors: int,
        priority: Sequence[float] | None = None,
        stay: bool = False,
    ) -> None:
        if executors < 1:
            raise ScheduleError(f"a schedule needs at least 1 executor, got {executors}")
        if priority is not None and len(priority) != len(dependencies):
            raise ScheduleError(
                f"{len(priority)} priorities for {len(dependencies)} operators; give every operator one"
            )
        self.executors = executors
        self._dependencies = [frozenset(before) for before in dependencies]
        self._following = followers(dependencies)
        self._priority = priority
        self._stay = stay
        self._begin()

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return not self._left

    def start(self) -> list[Start]:
        """Begin a step.

        Returns:
            What can be run at once.
        """
        self._begin()
        for index, count in enumerate(self._waiting):
            if not count:
                self._make_ready(index)
        return self._hand_out()

    def finished(self, operator: int) -> list[Start]:
        """Hear that an operator has finished, and say what can be run now."""
        executor = self._running.pop(operator)
        heapq.heappush(self._idle, executor)
        self._left -= 1
        for later in self._following[operator]:
            self._waiting[later] -= 1
            self._last[later] = executor
            if not self._waiting[later]:
                self._make_ready(later)
        return self._hand_out()

    def _begin(self) -> None:
        self._left = len(self._dependencies)
        self._waiting = [len(before) for before in self._dependencies]
        self._ready: list[tuple[float, int]] = []
        self._turns = 0
        self._idle = list(range(self.executors))
        self._running: dict[int, int] = {}
        self._last: dict[int, int] = {}  # by operator: the executor of what it waited for last

    def _make_ready(self, operator: int) -> None:
        key = float(self._turns) if self._priority is None else -self._priority[operator]
        self._turns += 1
        heapq.heappush(self._ready, (key, operator))

    def _hand_out(self) -> list[Start]:
        starts = []
        while self._ready and self._idle:
            _, operator = heapq.heappop(self._ready)
            starts.append(Start(operator, self._executor_for(operator)))
            self._running[operator] = starts[-1].executor
        return starts

    def _executor_for(self, operator: int) -> int:
        preferred = self._last.get(operator)
        if self._stay and preferred in self._idle:
            self._idle.remove(preferred)
            heapq.heapify(self._idle)
            return preferred
        return heapq.heappop(self._idle)
