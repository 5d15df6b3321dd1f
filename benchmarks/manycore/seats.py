"""Executors on the cores of a machine, more threads than cores included."""

from collections.abc import Sequence
from dataclasses import replace

from bow.errors import SettingError
from bow.schedule.scheduler import ListScheduler, Start


def fit(executors: int, threads: int, cores: int) -> bool:
    """Whether so many executors find seats: on cores, and then on the second hardware threads of cores."""
    return executors <= 2 * (cores // threads)


class Seated:
    """A list scheduler whose executors have seats: cores, or second hardware threads of cores.

    Executors sit side by side. Those that find no cores any more sit on the second hardware threads, beside the first.
    What runs there at the same time slows each other down, as the simulator is told.

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
        """Begin a step; what can be run at once."""
        return self._seated(self._scheduler.start(now_ns))

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """Hear that an operator has finished, and say what can be run now."""
        return self._seated(self._scheduler.finished(operator, now_ns))

    def _seated(self, starts: Sequence[Start]) -> list[Start]:
        return [self._with_cores(start) for start in starts]

    def _with_cores(self, start: Start) -> Start:
        turn, seat = divmod(start.executor, self._beside)
        cores = tuple(range(seat * self._threads, (seat + 1) * self._threads))
        return replace(start, threads=self._threads, cores=cores, sibling=turn == 1)
