"""Operator-scheduler protocol: completions in, starts out; and decisions as data from which a step can be repeated."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bow.errors import ScheduleError


@dataclass(frozen=True, repr=False)
class Start:
    """Run an operator, now."""

    operator: int
    executor: int
    """Whose thread runs it. Where executors are cores, the lowest of its cores; the executors of second hardware
    threads follow behind those of all cores."""
    threads: int = 1
    cores: tuple[int, ...] = ()  # the logical cores that it holds, ascending; none where executors have their own
    sibling: bool = False  # it runs on the second hardware thread of its core, beside whatever holds the core

    def __repr__(self) -> str:
        shown = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return f"Start({', '.join(f'{field.name}={value!r}' for field, value in shown if value != field.default)})"


class OperatorScheduler(Protocol):
    """Decides, when operators have finished, which ones start.

    A step begins with `start` and is over when `done`. Runtime, simulator and tests drive the same object. Schedulers
    that do not plan with times do not look at the clock.
    """

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step; what can be run at once."""

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """An operator has finished; what can be run now."""


class DecisionRecorder:
    """Passes on what a scheduler decides, and keeps it."""

    def __init__(self, scheduler: OperatorScheduler) -> None:
        self._scheduler = scheduler
        self._decisions: list[Start] = []

    @property
    def decisions(self) -> tuple[Start, ...]:
        """What was started in this step, in that order."""
        return tuple(self._decisions)

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return self._scheduler.done

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step, and forget the one before."""
        self._decisions = self._scheduler.start(now_ns)
        return list(self._decisions)

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """An operator has finished; what can be run now."""
        starts = self._scheduler.finished(operator, now_ns)
        self._decisions.extend(starts)
        return starts


def held_by_core(decisions: Iterable[Start], cores: int) -> tuple[tuple[int, ...], ...]:
    """The operators that hold each core, one after another: the `order` of a schedule.

    An operator that holds several cores stands in the lists of all of them. It can start when it is the next one in all
    and those that it depends on have finished. Carried out like this, with the times that the decisions were made with,
    no operator starts later than it was started then. Of operators without cores, every executor has a list.
    """
    decisions = tuple(decisions)
    held: list[list[int]] = [[] for _ in range(2 * cores if any(start.sibling for start in decisions) else cores)]
    for start in decisions:
        for core in start.cores or (start.executor,):
            if core >= cores:
                raise ScheduleError(f"operator {start.operator} has core {core}, and there are {cores}; count again")
            held[core + cores if start.sibling else core].append(start.operator)
    return tuple(map(tuple, held))
