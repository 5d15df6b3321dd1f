"""List schedulers with additional options of the papers: teams (Tang et al.), hardware threads (Liu et al.)."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from bow.errors import ScheduleError, SettingError
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
        if len(self._threads) != executors:
            raise ScheduleError(f"{len(self._threads)} numbers of threads for {executors} executors; give each one")
        _check_threads(self._threads)
        num_operators, everyone = len(dependencies), (1 << executors) - 1
        sizes = sorted(set(self._threads))
        classes = [sum(1 << each for each, size in enumerate(self._threads) if size == wanted) for wanted in sizes]
        self._preferred = [everyone] * num_operators if prefers is None else _masks(prefers, classes, num_operators)
        counts = [executors if open is None else open(finished) for finished in range(num_operators + 1)]
        wrong = next((count for count in counts if not 1 <= count <= executors), None)
        if wrong is not None:
            raise ScheduleError(f"open must give 1 to {executors} executors, as many as there are, got {wrong}")
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


def _check_threads(threads: Sequence[int]) -> None:
    wrong = next((executor for executor, count in enumerate(threads) if count < 1), None)
    if wrong is not None:
        raise ScheduleError(f"threads must be at least 1, got {threads[wrong]} for executor {wrong}")


def _masks(prefers: Sequence[int], classes: Sequence[int], num_operators: int) -> list[int]:
    """By operator: bit mask of the suitable executors."""
    if len(prefers) != num_operators:
        raise ScheduleError(f"{len(prefers)} preferred classes for {num_operators} operators; give every operator one")
    wrong = next((index for index, wanted in enumerate(prefers) if not 0 <= wanted < len(classes)), None)
    if wrong is not None:
        raise ScheduleError(
            f"operator {wrong} prefers class {prefers[wrong]}, and executors have {len(classes)} different numbers of "
            f"threads; use 0 to {len(classes) - 1}"
        )
    return [classes[wanted] for wanted in prefers]


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
        if not fit(scheduler.executors, threads, cores):
            raise SettingError(
                f"{scheduler.executors} executors of {threads} threads have no seats on {cores} cores of two hardware "
                "threads; use fewer"
            )
        self._scheduler = scheduler
        self._threads = threads
        self._beside = cores // threads

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return self._scheduler.done

    def start(self, now_ns: int = 0) -> list[Start]:
        """Start a step; returns the operators to start."""
        return self._seated(self._scheduler.start(now_ns))

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """Report that an operator has finished; returns the operators to start."""
        return self._seated(self._scheduler.finished(operator, now_ns))

    def _seated(self, starts: Sequence[Start]) -> list[Start]:
        return [self._with_cores(start) for start in starts]

    def _with_cores(self, start: Start) -> Start:
        turn, seat = divmod(start.executor, self._beside)
        cores = tuple(range(seat * self._threads, (seat + 1) * self._threads))
        return replace(start, threads=self._threads, cores=cores, sibling=turn == 1)
