"""Rounds without a barrier: each learner takes the next batch when it is free."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from bow.data import Batch, Batches, batch_of
from bow.engines.batches import present
from bow.engines.outcome import Outcome
from bow.engines.task import Learned, collected
from bow.engines.task_scheduler import Dispatch, Learn, TaskScheduler, TaskStart
from bow.replicas import LearnerGroup

Task = TypeVar("Task")


@dataclass
class FinishedTask:
    """A learning task that has ended."""

    learned: Learned
    finite: bool


class Period:
    """The rounds up to a synchronisation task, or fewer: which learner takes which batch, and the outcomes."""

    def __init__(self, group: LearnerGroup, batches: Sequence[Batches], ahead: int) -> None:
        self.batches = batches
        # Number of leading rounds, in which learners step alone. In one more, each learner has its own batch and leaves
        # its gradient in `G`.
        self.ahead = ahead
        self._z = group.matrix.z
        self.learners = len(group)
        self.present = [present(each, self.learners) for each in batches]
        self._done: list[list[FinishedTask | None]] = [[None] * self.learners for _ in batches]
        self._taken_by = [list(range(self.learners)) for _ in batches]
        if self.synchronises:
            for learner, there in zip(group.learners, self.present[-1], strict=True):
                if not there:
                    learner.gradient.zero_()

    @property
    def synchronises(self) -> bool:
        return self.ahead < len(self.batches)

    def start(self, places: int, dispatch: Dispatch) -> tuple[TaskScheduler, list[TaskStart]]:
        scheduler = TaskScheduler(self.learners, places, dispatch)
        return scheduler, scheduler.start(self.present, self.synchronises)

    def locate(self, task: Learn) -> tuple[int, int]:
        """Return the round of a task, counted from the first, and the position of its batch in the round."""
        return divmod(task.batch, self.learners)

    def batch(self, task: Learn) -> Batch | None:
        index, position = self.locate(task)
        return batch_of(self.batches[index], position)

    def steps(self, task: Learn) -> bool:
        return self.locate(task)[0] < self.ahead

    def take(self, task: Learn, done: FinishedTask | None = None) -> None:
        index, position = self.locate(task)
        self._done[index][position] = done
        self._taken_by[index][position] = task.learner

    def taken_by(self, index: int) -> list[int] | None:
        """Return the learner that took each batch of a round; None if each learner has its own."""
        return self._taken_by[index] if index < self.ahead else None

    def outcomes(self) -> list[Outcome]:
        return [self._outcome(index, done) for index, done in enumerate(self._done)]

    def _outcome(self, index: int, done: Sequence[FinishedTask | None]) -> Outcome:
        losses, metrics = collected([None if each is None else each.learned for each in done], self._z)
        finite = torch.tensor([each is not None and each.finite for each in done])
        return Outcome(losses, finite, [each is not None for each in done], metrics, self.taken_by(index))


def run_tasks(
    scheduler: TaskScheduler,
    runs: Sequence[TaskStart],
    start: Callable[[TaskStart], Task],
    first_ended: Callable[[dict[Learn, Task]], Learn],
) -> None:
    """Start the learning tasks that a scheduler issues, and report finished ones to it."""
    under_way: dict[Learn, Task] = {}
    while True:
        under_way |= {run.task: start(run) for run in runs}
        if not under_way:
            return
        ended = first_ended(under_way)
        del under_way[ended]
        runs = scheduler.finished(ended)
