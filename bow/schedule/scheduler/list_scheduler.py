"""Which operator of a step runs next, and on which executor: by priority, or first come, first served."""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Sequence

from bow.errors import ScheduleError
from bow.schedule.scheduler.dependencies import ReadyOperators
from bow.schedule.scheduler.protocol import Start


class ListScheduler:
    """Gives free executors the operators that are ready: those of the highest priority, or those that came first.

    With the levels of `critical_path` as priorities it is Graphi's scheduler, critical path first. Without
    priorities it is one queue that all executors take from, the baseline of the papers.

    No operator starts before those that it depends on have finished, and none twice. No executor that may be used is
    idle while an operator is ready, small ones apart. A finished operator costs O(log n) for each that it makes ready.

    Args:
        dependencies: by operator: those that must have run before it.
        executors: how many there are.
        priority: by operator: higher first, equal ones in the order of their numbers; None: in the order in which
            they have become ready.
        stay: an operator goes to the executor that ran one of those that it depends on, the last that finished, if
            that executor is free: what it reads may be in that executor's cache (section 6, preferred executor).
        small: operators that are not worth a queue: each runs on the executor that made it ready, at once and before
            anything else; several in the order in which they have become ready (section 5.2).
        light: one more executor, with one thread, numbered behind the others. It runs the small operators that are
            ready at the start of the step, which nothing on an executor made ready, and those that they make ready.
            Without it, small operators that are ready at the start wait in the queue like any other.
        threads: by executor, without the light one: how many it has; None: one each. Executors with equally many are a
            class (section 6, different thread team sizes).
        prefers: by operator: the class of executors that suits it, 0 being the one with the fewest threads: it goes to
            one of those if one is free, and else to any other; this comes before `stay`.
        open: by how many operators of the step have finished: how many executors may take operators from the queue,
            those with the lowest numbers (section 6, dynamic number of executors). An executor beyond them finishes
            what it has. `lambda finished: 2 if finished < num_forward else 4` opens two more for the backward pass.

    Raises:
        ScheduleError: no executors, an argument that does not fit the operators or executors, or operators that there
            are none of.

    Example:
        >>> scheduler = ListScheduler([(), (), (0,)], executors=1, priority=[2, 3, 1])
        >>> scheduler.start()
        [Start(operator=1, executor=0)]
        >>> scheduler.finished(1)
        [Start(operator=0, executor=0)]

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, algorithm 1 and
        sections 4.3, 5.2 and 6.
    """

    def __init__(
        self,
        dependencies: Sequence[Collection[int]],
        executors: int,
        priority: Sequence[float] | None = None,
        stay: bool = False,
        *,
        small: Collection[int] = (),
        light: bool = False,
        threads: Sequence[int] | None = None,
        prefers: Sequence[int] | None = None,
        open: Callable[[int], int] | None = None,
    ) -> None:
        num_operators = len(dependencies)
        threads = [1] * executors if threads is None else threads
        _check(num_operators, executors, priority, small, threads)
        self.executors = executors
        self._progress = ReadyOperators(dependencies)
        self._priority = priority
        self._stay = stay
        self._small = frozenset(small)
        self._light = executors if light else None
        self._executors = _FreeExecutors(threads, prefers, open, num_operators)
        self._begin()

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return self._progress.done

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step."""
        self._begin()
        for operator in self._progress.begin():
            self._make_ready(operator, self._light)
        first = [] if self._light is None else self._go_on(self._light)
        return first + self._hand_out()

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """An operator has finished; what can be run now."""
        executor = self._running.pop(operator)
        for later in self._progress.finish(operator):
            self._make_ready(later, executor)
        return self._go_on(executor) + self._hand_out()

    def _begin(self) -> None:
        self._ready: list[tuple[float, int]] = []
        self._num_ready = 0
        self._running: dict[int, int] = {}  # by operator: its executor
        self._made_by: dict[int, int] = {}  # by operator in the queue: the executor that made it ready
        self._at_once: dict[int, deque[int]] = {}  # by executor: small operators that it made ready
        self._executors.begin()

    def _make_ready(self, operator: int, executor: int | None) -> None:
        """Put an operator where it is taken from."""
        if executor is not None and operator in self._small:
            self._at_once.setdefault(executor, deque()).append(operator)
            return
        if executor is not None:
            self._made_by[operator] = executor
        key = float(self._num_ready) if self._priority is None else -self._priority[operator]
        self._num_ready += 1
        heapq.heappush(self._ready, (key, operator))

    def _go_on(self, executor: int) -> list[Start]:
        """The next small operator of an executor that has nothing to do; without one it is free."""
        own = self._at_once.get(executor)
        if own:
            return [self._run(own.popleft(), executor)]
        if executor != self._light:
            self._executors.release(executor)
        return []

    def _hand_out(self) -> list[Start]:
        starts: list[Start] = []
        while self._ready:
            _, operator = self._ready[0]
            stay = self._made_by.get(operator) if self._stay else None
            executor = self._executors.take(operator, stay, self._progress.num_finished)
            if executor is None:
                break
            heapq.heappop(self._ready)
            starts.append(self._run(operator, executor))
        return starts

    def _run(self, operator: int, executor: int) -> Start:
        self._running[operator] = executor
        return Start(operator, executor, 1 if executor == self._light else self._executors.threads[executor])


def _check(
    num_operators: int,
    executors: int,
    priority: Sequence[float] | None,
    small: Collection[int],
    threads: Sequence[int],
) -> None:
    if executors < 1:
        raise ScheduleError(f"a schedule needs at least 1 executor, got {executors}")
    if priority is not None and len(priority) != num_operators:
        raise ScheduleError(f"{len(priority)} priorities for {num_operators} operators; give every operator one")
    if len(threads) != executors:
        raise ScheduleError(f"{len(threads)} numbers of threads for {executors} executors; give every executor one")
    wrong = next((index for index in sorted(small) if not 0 <= index < num_operators), None)
    if wrong is not None:
        raise ScheduleError(f"operator {wrong} is called small, and there are {num_operators}; correct small")


class _FreeExecutors:
    """Which executors are free, and which of them suits an operator best (Tang et al., sections 5.2 and 6).

    An operator goes to an executor of the class that it prefers, if one is free; among those, to the executor that it
    would stay on; and otherwise to the first. Executors with equally many threads are a class, and classes are numbered
    from the fewest threads on. Sets of executors are the bits of a whole number, as in the paper.
    """

    def __init__(
        self,
        threads: Sequence[int],
        prefers: Sequence[int] | None,
        open: Callable[[int], int] | None,
        num_operators: int,
    ) -> None:
        _check_threads(threads)
        self.threads = tuple(threads)
        self._all = (1 << len(threads)) - 1
        sizes = sorted(set(threads))
        classes = [sum(1 << each for each, size in enumerate(threads) if size == wanted) for wanted in sizes]
        self._preferred = [self._all] * num_operators if prefers is None else _masks(prefers, classes, num_operators)
        counts = [len(threads) if open is None else open(finished) for finished in range(num_operators + 1)]
        wrong = next((count for count in counts if not 1 <= count <= len(threads)), None)
        if wrong is not None:
            raise ScheduleError(f"open must give 1 to {len(threads)} executors, as many as there are, got {wrong}")
        self._open = [(1 << count) - 1 for count in counts]
        self.begin()

    def begin(self) -> None:
        """Begin a step: all are free."""
        self._idle = self._all

    def take(self, operator: int, stay: int | None = None, num_finished: int = 0) -> int | None:
        """The executor that an operator is given to, which is free no longer; None: none is."""
        free = self._idle & self._open[num_finished]
        if not free:
            return None
        suitable = free & self._preferred[operator] or free
        executor = stay if stay is not None and suitable >> stay & 1 else _lowest(suitable)
        self._idle &= ~(1 << executor)
        return executor

    def release(self, executor: int) -> None:
        """Take back one that has nothing to do."""
        self._idle |= 1 << executor


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _check_threads(threads: Sequence[int]) -> None:
    if not threads:
        raise ScheduleError("a schedule needs at least 1 executor, got 0; add executors")
    wrong = next((executor for executor, count in enumerate(threads) if count < 1), None)
    if wrong is not None:
        raise ScheduleError(f"threads must be at least 1, got {threads[wrong]} for executor {wrong}")


def _masks(prefers: Sequence[int], classes: Sequence[int], num_operators: int) -> list[int]:
    """By operator: the executors that suit it."""
    if len(prefers) != num_operators:
        raise ScheduleError(f"{len(prefers)} preferred classes for {num_operators} operators; give every operator one")
    wrong = next((index for index, wanted in enumerate(prefers) if not 0 <= wanted < len(classes)), None)
    if wrong is not None:
        raise ScheduleError(
            f"operator {wrong} prefers class {prefers[wrong]}, and executors have {len(classes)} different numbers of "
            f"threads; use 0 to {len(classes) - 1}"
        )
    return [classes[wanted] for wanted in prefers]
