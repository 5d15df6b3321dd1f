"""What a list scheduler's arguments promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bow.schedule import Timeline
from bow.schedule.scheduler import Start
from bow.schedule.scheduler.protocol import simulate_operators
from tests.schedule.scheduler.graphs import Dependencies
from tests.schedule.scheduler.watching import Moment, Watched, check_carried_out


def run(scheduler: Any, costs: list[int]) -> Timeline:
    return simulate_operators(scheduler, lambda start: costs[start.operator])


def check_options(kind: Callable[..., Any], arguments: dict[str, Any], costs: list[int]) -> None:
    """A scheduler with these arguments can be carried out, decides as `Rules` do, and always alike."""
    scheduler = kind(**arguments)
    timeline = run(scheduler, costs)
    check_carried_out(timeline, arguments["dependencies"])
    assert run(scheduler, costs) == timeline == run(kind(**arguments), costs)
    watched, rules = Watched(kind(**arguments)), Rules(**arguments)
    run(watched, costs)
    for event in watched.events:
        assert event.starts == rules.expected(event.finished)


class Rules:
    """What the arguments promise, worked out from sets and in the plainest way."""

    def __init__(
        self,
        dependencies: Dependencies,
        executors: int,
        priority: list[int] | None = None,
        stay: bool = False,
        small: frozenset[int] = frozenset(),
        light: bool = False,
        threads: list[int] | None = None,
        prefers: list[int] | None = None,
        open: Callable[[int], int] = lambda finished: 1_000_000,
    ) -> None:
        self.moment = Moment(dependencies)
        self.executors, self.priority, self.stay, self.small, self.light = executors, priority, stay, small, light
        self.threads = threads or [1] * executors
        self.prefers, self.open = prefers, open
        self.made_by = dict.fromkeys(self.moment.ready, executors if light else None)
        self.at_once: dict[int | None, list[int]] = {}

    def expected(self, finished: int | None) -> list[Start]:
        """What starts when an operator has finished, or none has."""
        executor = self.executors if self.light else None
        if finished is not None:
            executor = self.moment.running[finished].executor
            known = set(self.moment.ready)
            self.moment.hear(finished)
            self.made_by |= {each: executor for each in self.moment.ready if each not in known}
        for each in list(self.moment.ready):
            if self.made_by[each] is not None and each in self.small:
                self.moment.ready.remove(each)
                self.at_once.setdefault(self.made_by[each], []).append(each)
        starts = []
        if own := self.at_once.get(executor):
            threads = self.threads[executor] if executor < self.executors else 1
            starts.append(self._carried_out(Start(own.pop(0), executor, threads)))
        while self.moment.ready and (free := self._free()):
            starts.append(self._carried_out(self._next(free)))
        return starts

    def _next(self, free: set[int]) -> Start:
        operator = self.moment.ready[0]
        if self.priority is not None:
            operator = max(self.moment.ready, key=lambda each: (self.priority[each], -each))
        if self.prefers is not None:
            wanted = sorted(set(self.threads))[self.prefers[operator]]
            free = {each for each in free if self.threads[each] == wanted} or free
        stays = self.stay and self.made_by[operator] in free
        executor = self.made_by[operator] if stays else min(free)
        return Start(operator, executor, self.threads[executor])

    def _free(self) -> set[int]:
        opened = set(range(min(self.executors, self.open(len(self.moment.finished)))))
        return opened - {start.executor for start in self.moment.running.values()}

    def _carried_out(self, start: Start) -> Start:
        self.moment.running[start.operator] = start
        if start.operator in self.moment.ready:  # small ones no longer are
            self.moment.ready.remove(start.operator)
        return start
