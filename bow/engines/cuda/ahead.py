"""Rounds without a barrier on a device with streams: each learner takes the next batch when it is free."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bow.engines.cuda.base import StreamEngine
from bow.engines.cuda.feed import Fed
from bow.engines.cuda.learner import StreamLearner
from bow.engines.cuda.results import SLOTS
from bow.engines.cuda.rounds import Heard, Issued
from bow.engines.outcome import Batches, Stacked
from bow.schedule.scheduler import Learn, Run, TaskScheduler

POLL_S = 20e-6
"""Seconds between two looks at learners that are all busy."""


class LearnersAhead(StreamEngine):
    """What engines have in common whose learners can start on the next batch while others are still at theirs.

    With `dispatch="first_come"`, the rounds in front of one with a synchronisation task have no order of learners: the
    host gives the next batch to the learner whose stream has come to its end, and steps that learner alone.
    """

    learners_run_ahead = True

    def issue_call(self, batches: Sequence[Batches], made: Tensor) -> list[Issued]:
        """Issue the rounds of a call, some of them without an order of learners."""
        issued: list[Issued] = []
        while (done := len(issued)) < len(batches):
            ahead = self._rounds_without_order(len(batches) - done)
            part = slice(done, done + max(1, ahead))
            issued += (
                Period(self, batches[part], made[part]).issue()
                if ahead
                else super().issue_call(batches[part], made[part])
            )
        return issued

    def run_tasks(self, scheduler: TaskScheduler, runs: Sequence[Run], issue: Callable[[Learn], StreamLearner]) -> None:
        """Issue the tasks of a scheduler, each when it is given out, and tell it of those that the device has ended."""
        busy: dict[Learn, StreamLearner] = {}
        given = list(runs)
        while given or busy:
            for run in given:
                assert isinstance(run.task, Learn)
                busy[run.task] = issue(run.task)
            ended = _first_through(busy)
            del busy[ended]
            given = scheduler.finished(ended)

    def _rounds_without_order(self, rounds: int) -> int:
        if self.settings.dispatch == "fixed" or len(self.group) == 1 or self.check_is_due():
            return 0
        together = min(self.period, rounds)
        return together - self._due(self.round_index + together - 1)


class Period:
    """Rounds in which every learner takes the next batch when it is free, and steps alone.

    Args:
        engine: whose rounds they are.
        batches: by round.
        made: where results go, by round and batch.
    """

    def __init__(self, engine: LearnersAhead, batches: Sequence[Batches], made: Tensor) -> None:
        self._engine = engine
        self._batches = batches
        self._made = made
        self._learners = len(engine.group)
        self._fed: list[Fed] = []
        self._present = [_present(each, self._learners) for each in batches]
        self._taken_by = [list(range(self._learners)) for _ in batches]
        self._behind = set(range(self._learners))
        """Learners that wait for what was there before the period."""

    def issue(self) -> list[Issued]:
        """Issue all tasks; the host has seen them end when this returns."""
        engine, stream = self._engine, self._engine.sync_stream
        while engine.under_way:
            engine.hear()
        if engine.gate is None:
            engine.move()
        # Memory of their own for all rounds: who is ahead takes batches while others still read old ones.
        self._fed = [engine.feed.put(SLOTS + i, each, self._learners) for i, each in enumerate(self._batches)]
        scheduler = TaskScheduler(self._learners, self._learners, "first_come")
        engine.run_tasks(scheduler, scheduler.start(self._present, synchronise=False), self._task)
        for learner in engine.learners:
            stream.wait(learner.through)
        engine.gate = None
        self._hear()
        engine.round_index += len(self._batches)
        return [Issued(*each) for each in zip(self._present, self._taken_by, strict=True)]

    def _task(self, task: Learn) -> StreamLearner:
        engine, learner = self._engine, self._engine.learners[task.learner]
        index, position = divmod(task.batch, self._learners)
        fed = self._fed[index]
        given = fed.given[position]
        assert given is not None
        stream, row = learner.stream, self._made[index][position]
        with torch.no_grad(), engine.device.issuing(), engine.device.on(stream):
            if task.learner in self._behind:
                assert engine.gate is not None
                stream.wait(engine.gate)
                self._behind.discard(task.learner)
            if fed.copied is not None:
                stream.wait(fed.copied)
            number = engine.group.first + position
            made = learner.learn(given, (engine.settings.seed, engine.round_index + index, number))
            row.copy_(made.results)
            engine.step_on_stream(learner, made)
        stream.record(learner.through)
        self._taken_by[index][position] = task.learner
        return learner

    def _hear(self) -> None:
        engine = self._engine
        pinned = engine.device.pinned(self._made.shape, self._made.dtype)
        over = engine.device.event("a period is over")
        with engine.device.on(engine.sync_stream):
            pinned.copy_(self._made, non_blocking=True)
        engine.sync_stream.record(over)
        over.synchronize()
        restarted = engine.stepping is not None
        heard = []
        for index, values in enumerate(engine.device.read_host(pinned)):
            issued = Issued(self._present[index], self._taken_by[index])
            heard.append(Heard.of(values, issued, engine.round_index + index, restarted))
        engine.act_on(heard)


def _first_through(busy: dict[Learn, StreamLearner]) -> Learn:
    while True:
        for task, learner in busy.items():
            if learner.through.query():
                return task
        time.sleep(POLL_S)


def _present(batches: Batches, learners: int) -> list[bool]:
    return [True] * learners if isinstance(batches, Stacked) else [batch is not None for batch in batches]
