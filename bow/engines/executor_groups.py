"""The executors of engine `graph`: groups, each of which runs one learner's learning task at a time."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from bow.devices import core_sets, share_cores
from bow.runtime import Seating
from bow.schedule import Schedule


@dataclass(frozen=True)
class ExecutorGroups:
    """How executors are divided between learners."""

    count: int
    threads: tuple[int, ...]  # by executor, group by group
    schedule: Schedule | None = None  # which executor of a group runs what; None: a group is one executor

    @classmethod
    def of(cls, learners: int, cores: int, threads: int, schedule: Schedule | None) -> "ExecutorGroups":
        """As many groups as learners, as far as there are cores.

        Example:
            >>> ExecutorGroups.of(learners=4, cores=8, threads=8, schedule=None).threads
            (2, 2, 2, 2)
            >>> ExecutorGroups.of(learners=4, cores=4, threads=4, schedule=Schedule((1, 1), order=((0,), (1,)))).threads
            (1, 1, 1, 1)
        """
        if schedule is None:
            count, each = share_cores(learners, cores, threads)
            return cls(count, (each,) * count)
        count = max(1, min(learners, cores // sum(schedule.threads)))
        return cls(count, schedule.threads * count, schedule)

    @property
    def width(self) -> int:
        """Executors of a group."""
        return len(self.threads) // self.count

    @functools.cached_property
    def affinities(self) -> tuple[list[tuple[int, ...]], list[int]]:
        """By executor: its cores, and its threads, of all that fit."""
        places = core_sets(list(self.threads))
        if self.schedule is None:
            return places, list(self.threads)
        found = [
            self.seating(self._num_operators, places[group * self.width : (group + 1) * self.width])
            for group in range(self.count)
        ]
        return [cores for each in found for cores in each.cores], [number for each in found for number in each.threads]

    def seating(self, operators: int, cores: Sequence[Sequence[int]] | None = None) -> Seating:
        """What a group's executors run of so many operators."""
        if self.schedule is None:
            return Seating.of(Schedule.sequential(operators, self.threads[0]), operators, cores or [()])
        return Seating.of(self.schedule, operators, cores or [()] * self.width)

    @property
    def _num_operators(self) -> int:
        assert self.schedule is not None
        return len({index for operators in self.schedule.order or () for index in operators})
