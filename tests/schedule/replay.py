"""Carries out decisions that were recorded: executors run operators in an order; oracle of `held_by_core`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from bow.schedule.scheduler import DecisionRecorder, OperatorScheduler, Start
from bow.schedule.scheduler.protocol import ReadyOperators


class WaitRecorder(DecisionRecorder):
    """Also knows at the end of which operator others were started."""

    def __init__(self, scheduler: OperatorScheduler) -> None:
        super().__init__(scheduler)
        self.waits: dict[int, int] = {}

    def start(self, now_ns: int = 0) -> list[Start]:
        self.waits = {}
        return super().start(now_ns)

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        starts = super().finished(operator, now_ns)
        self.waits.update((start.operator, operator) for start in starts)
        return starts


def with_waits(dependencies: Sequence[Collection[int]], waits: Mapping[int, int]) -> list[frozenset[int]]:
    """Dependencies of a step that shall be repeated to the letter.

    A scheduler may leave a core idle on purpose, because what is ready would last too long there, or would interfere
    with what runs. That an operator comes behind the end of the one at which it was started says so.
    """
    return [
        frozenset(before) | ({waits[operator]} if operator in waits else frozenset())
        for operator, before in enumerate(dependencies)
    ]


class OrderScheduler:
    """Starts an operator when what it depends on has finished and it is the next one in every list that it stands in.

    It decides nothing: a schedule that was made once is repeated step by step, on other times if need be.

    Args:
        dependencies: by operator: those that must have run before it.
        order: by executor: its operators, one after another. Without `threads` executors are cores, and an operator
            that stands in several lists holds all those cores, with a thread on each.
        threads: by executor: how many it has, where each has cores of its own; an operator that stands in several lists
            runs on the first, with the threads of all.
        siblings: the second half of the lists belong to the second hardware threads of the cores in the first half.
    """

    def __init__(
        self,
        dependencies: Sequence[Collection[int]],
        order: Sequence[Sequence[int]],
        *,
        threads: Sequence[int] | None = None,
        siblings: bool = False,
    ) -> None:
        lists_of: list[list[int]] = [[] for _ in dependencies]
        before = [set(earlier) for earlier in dependencies]
        for number, operators in enumerate(order):
            for operator in operators:
                lists_of[operator].append(number)
            for earlier, later in itertools.pairwise(operators):
                before[later].add(earlier)
        self._progress = ReadyOperators(before)  # the head of a list is what waits for none of that list
        cores = len(order) // 2 if siblings else len(order)
        self._starts = [
            _on_cores(operator, numbers, cores) if threads is None else _on_executors(operator, numbers, threads)
            for operator, numbers in enumerate(lists_of)
        ]

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return self._progress.done

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step."""
        return [self._starts[operator] for operator in self._progress.begin()]

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """An operator has finished; what can be run now."""
        return [self._starts[later] for later in self._progress.finish(operator)]


def _on_executors(operator: int, numbers: Sequence[int], threads: Sequence[int]) -> Start:
    return Start(operator, numbers[0], sum(threads[number] for number in numbers))


def _on_cores(operator: int, numbers: Sequence[int], cores: int) -> Start:
    """An operator on the cores with these numbers; behind the last core come second hardware threads."""
    held = tuple(number % cores for number in numbers)
    return Start(operator, numbers[0], len(held), held, sibling=numbers[0] >= cores)
