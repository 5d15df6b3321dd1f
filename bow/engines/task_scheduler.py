"""Assign batches to learners, and learners to places."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

# Whether batches go to learners in a fixed order, or to the first free learner.
Dispatch: TypeAlias = Literal["fixed", "first_come"]


@dataclass(frozen=True)
class Learn:
    """A learning task."""

    learner: int
    batch: int


@dataclass(frozen=True)
class TaskStart:
    """Run a learning task on a place, which runs its tasks in order."""

    task: Learn
    place: int


class TaskScheduler:
    """Schedule the learning tasks of one period after another: several rounds, the last of which may synchronise."""

    # `fixed`: learner j takes batch j of every round, on place `j % places`. The whole schedule is known beforehand and
    # returned by `start`: a device that queues work (a CUDA stream) needs no host that waits for events. `first_come`:
    # a free place takes the learner that has been free for longest, and that learner the next batch. Only the number of
    # batches in a period is fixed. A round that synchronises is held back: it has one batch for each learner, which the
    # learner takes when nothing else is left, so that every learner has a step in the round that is averaged (Koliousis
    # et al., CROSSBOW, 2019, section 4). No learner and no place ever runs two tasks at once, and a period ends before
    # the next one begins.

    def __init__(self, learners: int, places: int, dispatch: Dispatch = "fixed") -> None:
        assert learners >= 1
        assert places >= 1
        self.learners = learners
        self.places = places
        self.dispatch = dispatch
        self._running: dict[Learn, int] = {}  # by task: its place
        self._idle_learners = deque(range(learners))
        self._idle_places = deque(range(places))
        self._shared: deque[int] = deque()  # batches for any free learner
        self._kept: dict[int, int] = {}  # by learner: the batch that is held back for it

    @property
    def done(self) -> bool:
        return not (self._running or self._shared or self._kept)

    def start(self, rounds: Sequence[Sequence[bool]], synchronises: bool) -> list[TaskStart]:
        assert self.done
        assert all(len(batches) == self.learners for batches in rounds)
        return self._all_in_order(rounds) if self.dispatch == "fixed" else self._first(rounds, synchronises)

    def finished(self, task: Learn) -> list[TaskStart]:
        place = self._running.pop(task)
        if self.dispatch == "fixed":
            return []
        self._idle_places.append(place)
        self._idle_learners.append(task.learner)
        return self._take()

    def _all_in_order(self, rounds: Sequence[Sequence[bool]]) -> list[TaskStart]:
        runs = [
            TaskStart(Learn(learner, index * self.learners + learner), learner % self.places)
            for index, batches in enumerate(rounds)
            for learner, there in enumerate(batches)
            if there
        ]
        self._running = {run.task: run.place for run in runs}
        return runs

    def _first(self, rounds: Sequence[Sequence[bool]], synchronises: bool) -> list[TaskStart]:
        free, kept = (rounds[:-1], rounds[-1:]) if synchronises else (rounds, [])
        self._shared = deque(
            index * self.learners + position
            for index, batches in enumerate(free)
            for position, there in enumerate(batches)
            if there
        )
        self._kept = {j: len(free) * self.learners + j for own in kept for j, there in enumerate(own) if there}
        self._idle_learners, self._idle_places = deque(range(self.learners)), deque(range(self.places))
        return self._take()

    def _take(self) -> list[TaskStart]:
        """Assign free places to free learners."""
        runs = []
        while self._idle_places and (task := self._next()) is not None:
            runs.append(TaskStart(task, self._idle_places.popleft()))
            self._running[task] = runs[-1].place
        return runs

    def _next(self) -> Learn | None:
        """Return the next task of the learner that has been free for longest and has one."""
        for learner in self._idle_learners:
            if self._shared or learner in self._kept:
                self._idle_learners.remove(learner)
                return Learn(learner, self._shared.popleft() if self._shared else self._kept.pop(learner))
        return None
