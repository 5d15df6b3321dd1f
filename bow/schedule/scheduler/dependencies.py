"""What the dependencies of operators allow: which are ready, and how long a step takes at least."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bow.errors import ScheduleError


@dataclass(frozen=True)
class CriticalPath:
    """What the dependencies of a step allow, with as many executors as there might be.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.3.
    """

    levels: tuple[float, ...]  # by operator: the longest time from its start to the end of the step
    path: tuple[int, ...]  # the operators that determine the step's least time, in the order in which they run
    total: float  # what all operators take together

    @property
    def length(self) -> float:
        """The least time of a step."""
        return self.levels[self.path[0]] if self.path else 0

    @property
    def parallelism(self) -> float:
        """How many operators run at once on average where the step takes its least time."""
        return self.total / self.length if self.length else 1.0


def critical_path(dependencies: Sequence[Collection[int]], costs: Sequence[float]) -> CriticalPath:
    """Find the operators on which a step's time depends."""
    if len(costs) != len(dependencies):
        raise ScheduleError(f"{len(costs)} costs for {len(dependencies)} operators; give every operator one")
    wrong = next((index for index, cost in enumerate(costs) if not cost >= 0), None)
    if wrong is not None:
        raise ScheduleError(f"a cost must be at least 0, got {costs[wrong]} for operator {wrong}")
    following = followers(dependencies)
    levels = [0.0] * len(costs)
    for index in reversed(topological(dependencies)):
        levels[index] = costs[index] + max((levels[later] for later in following[index]), default=0)
    path: list[int] = []
    ahead: Collection[int] = range(len(costs))
    while ahead:  # equal levels: the operator that was captured first
        path.append(max(ahead, key=lambda index: (levels[index], -index)))
        ahead = following[path[-1]]
    return CriticalPath(tuple(levels), tuple(path), sum(costs))


def followers(dependencies: Sequence[Collection[int]]) -> list[list[int]]:
    """By operator: those that wait for it, in ascending order."""
    following: list[list[int]] = [[] for _ in dependencies]
    for index, before in enumerate(dependencies):
        for earlier in set(before):
            following[earlier].append(index)
    return following


def topological(dependencies: Sequence[Collection[int]]) -> list[int]:
    """The operators in an order in which each comes behind those that it depends on."""
    following = followers(dependencies)
    waiting = [len(set(before)) for before in dependencies]
    order = [index for index, count in enumerate(waiting) if not count]
    for index in order:
        for later in following[index]:
            waiting[later] -= 1
            if not waiting[later]:
                order.append(later)
    if len(order) < len(dependencies):
        stuck = next(index for index, count in enumerate(waiting) if count)
        raise ScheduleError(f"operator {stuck} waits for itself, by way of others; correct the dependencies")
    return order


class ReadyOperators:
    """Which operators of a step have become ready."""

    def __init__(self, dependencies: Sequence[Collection[int]]) -> None:
        self._counts = [len(set(before)) for before in dependencies]
        self._following = followers(dependencies)
        self.begin()

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return self.num_finished == len(self._counts)

    def begin(self) -> list[int]:
        """Begin a step: the operators that wait for none."""
        self._waiting = list(self._counts)
        self.num_finished = 0
        return [operator for operator, count in enumerate(self._counts) if not count]

    def finish(self, operator: int) -> list[int]:
        """The operators that waited for this one last, in ascending order."""
        self.num_finished += 1
        ready = []
        for later in self._following[operator]:
            self._waiting[later] -= 1
            if not self._waiting[later]:
                ready.append(later)
        return ready
