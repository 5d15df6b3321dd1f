"""What a scheduler decided in a step, as data from which the step can be repeated."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from bow.errors import ScheduleError
from bow.schedule.scheduler.start import Scheduler, Start


class Recorder:
    """Passes on what a scheduler decides, and keeps it.

    Args:
        scheduler: what decides.

    Example:
        >>> from bow.schedule.scheduler import ListScheduler
        >>> recorder = Recorder(ListScheduler([(), (), (0,)], executors=1))
        >>> while not recorder.done:
        ...     starts = recorder.finished(starts[0].operator) if recorder.turns else recorder.start()
        >>> recorder.turns
        (Start(operator=0, executor=0), Start(operator=1, executor=0), Start(operator=2, executor=0))
        >>> recorder.waits
        {1: 0, 2: 1}
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._turns: list[Start] = []
        self._waits: dict[int, int] = {}

    @property
    def turns(self) -> tuple[Start, ...]:
        """What was started in this step, in that order."""
        return tuple(self._turns)

    @property
    def waits(self) -> dict[int, int]:
        """By operator: the one at whose end it was started; what was started at once is not in it."""
        return dict(self._waits)

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return self._scheduler.done

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step, and forget the one before."""
        self._turns, self._waits = [], {}
        starts = self._scheduler.start(now_ns)
        self._turns.extend(starts)
        return starts

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """Hear that an operator has finished, and say what can be run now."""
        starts = self._scheduler.finished(operator, now_ns)
        self._turns.extend(starts)
        self._waits.update((start.operator, operator) for start in starts)
        return starts


def held_by_core(turns: Iterable[Start], cores: int) -> tuple[tuple[int, ...], ...]:
    """The operators that hold each core, one after another: the `order` of a schedule.

    An operator that holds several cores stands in the lists of all of them. It can start when it is the next one in all
    and those that it depends on have finished. Carried out like this, with the times that the decisions were made with,
    no operator starts later than it was started then; each starts at the same moment where `with_waits` says what it
    waited for although it could have started. Of operators without cores, every executor has a list.

    Example:
        >>> held_by_core([Start(0, 0, 2, (0, 1)), Start(1, 2, 1, (2,)), Start(2, 1, 2, (1, 2))], cores=3)
        ((0,), (0, 2), (1, 2))
    """
    turns = tuple(turns)
    held: list[list[int]] = [[] for _ in range(2 * cores if any(turn.sibling for turn in turns) else cores)]
    for turn in turns:
        for core in turn.cores or (turn.executor,):
            if core >= cores:
                raise ScheduleError(f"operator {turn.operator} has core {core}, and there are {cores}; count again")
            held[core + cores if turn.sibling else core].append(turn.operator)
    return tuple(map(tuple, held))


def with_waits(dependencies: Sequence[Collection[int]], waits: Mapping[int, int]) -> list[frozenset[int]]:
    """Dependencies of a step that shall be repeated to the letter.

    A scheduler may leave a core idle on purpose, because what is ready would last too long there, or would disturb what
    runs. That an operator comes behind the end of the one at which it was started says so.

    Example:
        >>> with_waits([(), (), (0,)], {1: 0, 2: 1})
        [frozenset(), frozenset({0}), frozenset({0, 1})]
    """
    return [
        frozenset(before) | ({waits[operator]} if operator in waits else frozenset())
        for operator, before in enumerate(dependencies)
    ]
