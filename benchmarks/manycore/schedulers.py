"""List schedulers with additional options of the papers: teams (Tang et al.), hardware threads (Liu et al.)."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from bow.schedule.scheduler import ListScheduler, Start


class TeamScheduler(ListScheduler):
    """A list scheduler whose executors have teams of several sizes and vary in number, or with a light executor.

    An operator is assigned to a free executor of its preferred class, if any; among those, to its preferred executor;
    otherwise to the first free one. Executors with the same number of threads are a class; classes are numbered in
    ascending order of threads.
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
        super().__init__(dependencies, executors, priority, stay, small=small)
        self._light = executors if light else None
        self._threads = tuple([1] * executors if threads is None else threads)
        num_operators, everyone = len(dependencies), (1 << executors) - 1
        sizes = sorted(set(self._threads))
        classes = [sum(1 << each for each, size in enumerate(self._threads) if size == wanted) for wanted in sizes]
        self._preferred = [everyone] * num_operators if prefers is None else [classes[wanted] for wanted in prefers]
        counts = [executors if open is None else open(finished) for finished in range(num_operators + 1)]
        self._open = [(1 << count) - 1 for count in counts]

    def start(self, now_ns: int = 0) -> list[Start]:
        self._begin()
        for operator in self._progress.begin():
            self._make_ready(operator, self._light)
        first = [] if self._light is None else self._next_small_or_idle(self._light)
        return first + self._dispatch()

    def _suitable(self, operator: int) -> int:
        free = self._idle & self._open[self._progress.num_finished]
        return free & self._preferred[operator] or free

    def _run(self, operator: int, executor: int) -> Start:
        self._running[operator] = executor
        return Start(operator, executor, 1 if executor == self._light else self._threads[executor])


def fit(executors: int, threads: int, cores: int) -> bool:
    """Whether this many executors fit on the cores and their second hardware threads."""
    return executors <= 2 * (cores // threads)


class Seated:
    """A list scheduler whose executors have seats: cores, or second hardware threads of cores.

    Executors are placed side by side. When all cores are occupied, further ones use the second hardware threads,
    starting again at the first core. Executors on the same core slow each other down, which the simulator models.

    Example:
        >>> seated = Seated(ListScheduler([(), ()], executors=2), threads=2, cores=3)
        >>> [(start.cores, start.sibling) for start in seated.start()]
        [((0, 1), False), ((0, 1), True)]

    References:
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, Table I.
    """

    def __init__(self, scheduler: ListScheduler, threads: int, cores: int) -> None:
        self._scheduler = scheduler
        self._threads = threads
        self._beside = cores // threads

    @property
    def done(self) -> bool:
        return self._scheduler.done

    def start(self, now_ns: int = 0) -> list[Start]:
        return self._seated(self._scheduler.start(now_ns))

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        return self._seated(self._scheduler.finished(operator, now_ns))

    def _seated(self, starts: Sequence[Start]) -> list[Start]:
        return [self._with_cores(start) for start in starts]

    def _with_cores(self, start: Start) -> Start:
        turn, seat = divmod(start.executor, self._beside)
        cores = tuple(range(seat * self._threads, (seat + 1) * self._threads))
        return replace(start, threads=self._threads, cores=cores, sibling=turn == 1)
