"""Which executor an operator goes to."""

from collections.abc import Callable, Sequence

from bow.errors import ScheduleError


class Executors:
    """Which executors are free, and which of them suits an operator best.

    An operator goes to an executor of the class that it prefers, if one is free; among those, to the executor that it
    would stay on; and otherwise to the first. Executors with equally many threads are a class, and classes are numbered
    from the fewest threads on.

    Sets of executors are the bits of a whole number, as in the paper: the first of a set is its lowest bit.

    Args:
        threads: by executor: how many it has.
        prefers: by operator: the class of executors that suits it; None: any.
        open: by the number of operators that have finished: how many executors may be given any; None: all.
        num_operators: in a step.

    Raises:
        ScheduleError: no executor, a class that there is none of, or a number of open executors outside 1 to all.

    Example:
        >>> executors = Executors(threads=[4, 4, 1], prefers=[0, 1, 0, 1], open=None, num_operators=4)
        >>> executors.take(0), executors.take(1, stay=1), executors.take(2), executors.take(3)
        (2, 1, 0, None)

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, sections 5.2 and 6.
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
