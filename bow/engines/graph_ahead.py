"""Rounds of engine `graph` without a barrier: each learner takes the next batch when it is free."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bow.engines.eager import batch_of
from bow.engines.graph_round import GraphRound
from bow.engines.outcome import Batches, Outcome, Stacked
from bow.engines.task import Batch
from bow.replicas import LearnerGroup
from bow.schedule.scheduler import Learn, TaskScheduler


class TaskRunner(Protocol):
    """Runs single learning tasks on executors: the engine."""

    group: LearnerGroup

    def start_task(self, task: Learn, batch: Batch, executor: int, steps: bool) -> GraphRound:
        """Start a learning task on an idle executor."""
        ...

    def finish_task(self, task: Learn, running: GraphRound, steps: bool) -> Outcome:
        """What has come of a learning task, behind the learner's step where it steps."""
        ...

    def wait_any(self, executors: Sequence[int]) -> int:
        """Wait until one of these executors is idle, and say which."""
        ...


class Period:
    """The rounds up to a synchronisation task, or fewer.

    Args:
        runner: the engine.
        batches: by round.
        ahead: in so many of the rounds, from the first on, learners step alone; in the others their gradients go to
            `G`.
    """

    def __init__(self, runner: TaskRunner, batches: Sequence[Batches], ahead: int) -> None:
        self._runner = runner
        self._batches = batches
        self._ahead = ahead
        self._learners = len(runner.group)
        self._done: list[list[Outcome | None]] = [[None] * self._learners for _ in batches]
        self._taken_by = [list(range(self._learners)) for _ in batches]
        self._running: dict[int, tuple[Learn, GraphRound]] = {}  # by executor

    def run(self, executors: int) -> list[Outcome]:
        """Run all learning tasks; the synchronisation task is the caller's, behind this."""
        synchronises = self._ahead < len(self._batches)
        present = [self._present(each) for each in self._batches]
        if synchronises:
            for learner, there in zip(self._runner.group.learners, present[-1], strict=True):
                if not there:
                    learner.gradient.zero_()
        scheduler = TaskScheduler(self._learners, executors, "first_come")
        runs = scheduler.start(present, synchronises)
        while True:
            for run in runs:
                if isinstance(run.task, Learn):
                    self._start(run.task, run.place)
            if not self._running:
                return [self._outcome(index) for index in range(len(self._batches))]
            runs = scheduler.finished(self._finish_one())

    def _start(self, task: Learn, executor: int) -> None:
        index, position = divmod(task.batch, self._learners)
        batch = batch_of(self._batches[index], position)
        self._running[executor] = task, self._runner.start_task(task, batch, executor, steps=index < self._ahead)

    def _finish_one(self) -> Learn:
        executor = self._runner.wait_any(list(self._running))
        task, running = self._running.pop(executor)
        index, position = divmod(task.batch, self._learners)
        self._done[index][position] = self._runner.finish_task(task, running, steps=index < self._ahead)
        self._taken_by[index][position] = task.learner
        return task

    def _outcome(self, index: int) -> Outcome:
        done, dtype = self._done[index], self._runner.group.matrix.z.dtype
        names = next((outcome.metrics.keys() for outcome in done if outcome is not None), ())
        losses = torch.stack([_nan(dtype) if each is None else each.losses[0] for each in done])
        finite = torch.tensor([each is not None and bool(each.finite[0]) for each in done])
        metrics = {
            name: torch.stack([_nan(torch.float32) if each is None else each.metrics[name][0] for each in done])
            for name in names
        }
        taken_by = self._taken_by[index] if index < self._ahead else None
        return Outcome(losses, finite, [each is not None for each in done], metrics, taken_by)

    def _present(self, batches: Batches) -> list[bool]:
        return [True] * self._learners if isinstance(batches, Stacked) else [batch is not None for batch in batches]


def _nan(dtype: torch.dtype) -> Tensor:
    return torch.full((), torch.nan, dtype=dtype)
