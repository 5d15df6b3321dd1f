"""The executors of engine `graph`, and which of them a learner has."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from bow.devices import core_sets, share_cores
from bow.runtime import Seating
from bow.schedule import Schedule


@dataclass(frozen=True)
class Lanes:
    """Teams of executors, each of which runs one learner's learning task at a time.

    Attributes:
        teams: how many there are.
        threads: by executor, team by team.
        schedule: which executor of a team runs what; None: a team is one executor.
    """

    teams: int
    threads: tuple[int, ...]
    schedule: Schedule | None = None

    @classmethod
    def of(cls, learners: int, cores: int, threads: int, schedule: Schedule | None) -> "Lanes":
        """As many teams as learners, as far as there are cores.

        Example:
            >>> Lanes.of(learners=4, cores=8, threads=8, schedule=None).threads
            (2, 2, 2, 2)
            >>> Lanes.of(learners=4, cores=4, threads=4, schedule=Schedule((1, 1), order=((0,), (1,)))).threads
            (1, 1, 1, 1)
        """
        if schedule is None:
            teams, each = share_cores(learners, cores, threads)
            return cls(teams, (each,) * teams)
        teams = max(1, min(learners, cores // sum(schedule.threads)))
        return cls(teams, schedule.threads * teams, schedule)

    @property
    def width(self) -> int:
        """Executors of a team."""
        return len(self.threads) // self.teams

    @functools.cached_property
    def seats(self) -> tuple[list[tuple[int, ...]], list[int]]:
        """By executor: its cores, and its threads, of all that there is room for."""
        places = core_sets(list(self.threads))
        if self.schedule is None:
            return places, list(self.threads)
        found = [
            self.seating(self._num_operators, places[team * self.width : (team + 1) * self.width])
            for team in range(self.teams)
        ]
        return [cores for each in found for cores in each.cores], [number for each in found for number in each.threads]

    def seating(self, operators: int, cores: Sequence[Sequence[int]] | None = None) -> Seating:
        """What a team's executors run of so many operators."""
        if self.schedule is None:
            return Seating.of(Schedule.sequential(operators, self.threads[0]), operators, cores or [()])
        return Seating.of(self.schedule, operators, cores or [()] * self.width)

    @property
    def _num_operators(self) -> int:
        assert self.schedule is not None
        return len({index for lane in self.schedule.order or () for index in lane})
