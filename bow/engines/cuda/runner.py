"""Runners on devices with streams, and the round that most of them share: learners in parallel on their streams."""

import abc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from bow.data import Batches
from bow.devices import Stream
from bow.engines.batches import FlatBatch
from bow.engines.cuda.context import StreamContext
from bow.engines.cuda.learner import IssuedTask, StreamLearner
from bow.engines.cuda.pending import FinishedRound, IssuedRound, PendingRounds
from bow.engines.cuda.step import RowsStep, SgdStep
from bow.engines.cuda.transfers import FINITE, SLOTS, DeviceBatches
from bow.engines.first_come import Period
from bow.engines.loop import step_row
from bow.engines.task_scheduler import Learn, TaskScheduler, TaskStart


class DeviceRunner(abc.ABC):
    """Issue the learning tasks of one device's rounds."""

    name: ClassVar[str]
    replays: ClassVar[bool] = True  # whether captures replay without Python, so that live checks are needed

    def __init__(self, context: StreamContext) -> None:
        self.context = context
        self.device = context.device

    @property
    def description(self) -> str:
        return self.name if self.context.captures.refused is None else f"{self.name} (not captured)"

    @property
    def draws_as_eager(self) -> bool:
        """Whether a learner's captured task draws the same random numbers as its uncaptured one."""
        return False

    @property
    def state(self) -> dict[str, Any]:
        """Plain values for checkpoints that decide how later rounds run, besides captures."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most depend on nothing else
        """Restore `state`."""

    @abc.abstractmethod
    def capture(self, batch: FlatBatch) -> None:
        """Capture everything that batches of this shape need; the host may wait."""

    @abc.abstractmethod
    def issue(self, slot: int, batches: DeviceBatches, due: bool) -> None:
        """Issue the learning tasks of a round, and the rest of it if `context.stepping` steps and averages."""
        # Afterwards the synchronisation stream waits for all of it, and the results are in their slot.

    def streams(self) -> list[Stream]:
        return [self.context.feed.stream, *(learner.stream for learner in self.context.learners)]

    @property
    def steps_last(self) -> bool:
        """Whether the last round's steps were issued after all learners, outside of a graph."""
        return False

    def followed(self) -> None:
        """Called after z was copied from the only learner's weights, which must not be written before that."""
        if isinstance(self.context.stepping, SgdStep):
            self.context.stepping.moved()

    def bind(self) -> None:
        self.context.bind()

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Stop the threads; the next round restarts them."""


class AheadDeviceRunner(DeviceRunner):
    """A runner whose learners can take batches as they come, without a barrier after every round."""

    @abc.abstractmethod
    def run_tasks(
        self, scheduler: TaskScheduler, runs: Sequence[TaskStart], issue: Callable[[Learn], StreamLearner]
    ) -> None:
        """Issue a scheduler's tasks as it starts them, and report those that the device has finished."""


IssueTask: TypeAlias = Callable[[StreamLearner, FlatBatch], IssuedTask]  # issues a learning task on the current stream

# Issues something for each learner, completely before it returns.
ForEach: TypeAlias = Callable[[Callable[[StreamLearner], None]], None]

ONE_OPTIMIZER = threading.Lock()  # held while one learner steps with the shared optimizer


def issue_in_parallel(
    context: StreamContext,
    batches: DeviceBatches,
    rows: Sequence[Tensor],
    due: bool,
    learn: IssueTask | None = None,  # None: of the coming round, replayed if it has been captured
    for_each: ForEach | None = None,
) -> None:
    """Issue a round, which ends on the synchronisation stream; results go to `rows`, by learner."""

    def learn_next(learner: StreamLearner, batch: FlatBatch) -> IssuedTask:
        return learner.learn(batch, lambda: context.task_seed(learner.index))

    stepping, sync_stream, learners = context.stepping, context.order.sync_stream, context.learners
    by_row = stepping if isinstance(stepping, SgdStep) else None
    tasks: list[IssuedTask | None] = [None] * len(learners)

    def issue(learner: StreamLearner) -> None:
        tasks[learner.index] = _learn(context, learner, batches, rows, learn or learn_next)

    if for_each is None:
        for learner in learners:
            issue(learner)
    else:
        for_each(issue)
    # No step before all learning tasks are issued: one that fails leaves everything unchanged.
    waits = by_row is not None and by_row.center(sync_stream, due)
    for learner, task in zip(learners, tasks, strict=True):
        if by_row is not None:
            _step(context, by_row, learner, task, rows[learner.index], due, waits)
        learner.stream.record(learner.finished_event)
        sync_stream.wait(learner.finished_event)
    if isinstance(stepping, RowsStep):
        with context.device.on(sync_stream):
            stepping.whole(torch.stack([row[FINITE] for row in rows]), due)


def step_on_stream(context: StreamContext, learner: StreamLearner, task: IssuedTask, kept: Tensor) -> None:
    """Step one learner alone on its stream, without averaging; the central model does not move meanwhile."""
    stepping = context.stepping
    if isinstance(stepping, SgdStep):
        stepping.row(learner.index, task.results, kept, synchronise=False)
        return
    kept.copy_(task.results)
    gradient = context.group.matrix.gradients[learner.index : learner.index + 1]
    gradient.masked_fill_(kept[FINITE] == 0, 0)
    with ONE_OPTIMIZER:  # a step removes the others' gradients from the optimizer
        step_row(context, learner.index)


def _learn(
    context: StreamContext, learner: StreamLearner, batches: DeviceBatches, rows: Sequence[Tensor], learn: IssueTask
) -> IssuedTask | None:
    batch, stream = batches.by_learner[learner.index], learner.stream
    with context.device.on(stream):
        if context.order.start_event is not None:
            stream.wait(context.order.start_event)
        if batch is None:
            context.group.learners[learner.index].gradient.zero_()
            rows[learner.index].fill_(torch.nan)
            return None
        if batches.copied is not None:
            stream.wait(batches.copied)
        task = learn(learner, batch)
        context.results.check(task.metrics)
        if not isinstance(context.stepping, SgdStep):
            rows[learner.index].copy_(task.results)
        return task


def _step(
    context: StreamContext,
    stepping: SgdStep,
    learner: StreamLearner,
    task: IssuedTask | None,
    kept: Tensor,
    due: bool,
    waits: bool,
) -> None:
    with context.device.on(learner.stream):
        if waits:
            learner.stream.wait(stepping.centered)
        if task is not None:
            stepping.row(learner.index, task.results, kept, due)
        elif due:
            stepping.correct(learner.index)


POLL_S = 20e-6  # seconds between two polls of learners that are all busy


def issue_ahead(
    context: StreamContext,
    runner: AheadDeviceRunner,
    pending: PendingRounds,
    batches: Sequence[Batches],
    made: Tensor,
) -> list[IssuedRound]:
    """Issue rounds before a synchronisation task; the host has seen all tasks end when this returns."""
    # The host gives the next batch to a learner whose stream has become idle, and steps that learner alone. Results go
    # to `made`, by round and batch.
    order = context.order
    pending.finish_all()
    if order.start_event is None:
        order.learners_moved()
    period = Period(context.group, batches, ahead=len(batches))
    # Separate memory for every round: a learner that is ahead takes batches while others still read old ones.
    there = [context.feed.put(SLOTS + i, each, period.learners) for i, each in enumerate(batches)]
    scheduler, runs = period.start(period.learners, "first_come")
    runner.run_tasks(scheduler, runs, _issuing(context, period, there, made))
    for learner in context.learners:
        order.sync_stream.wait(learner.finished_event)
    order.start_event = None
    issued = [IssuedRound(active, period.taken_by(i)) for i, active in enumerate(period.present)]
    pending.act_on(_finished(context, issued, made))
    context.log.round_index += len(batches)
    return issued


def first_through(busy: dict[Learn, StreamLearner]) -> Learn:
    while True:
        for task, learner in busy.items():
            if learner.finished_event.query():
                return task
        time.sleep(POLL_S)


def _issuing(
    context: StreamContext, period: Period, there: Sequence[DeviceBatches], made: Tensor
) -> Callable[[Learn], StreamLearner]:
    not_yet_synchronised = set(range(period.learners))  # learners that have yet to wait for earlier work

    def issue(task: Learn) -> StreamLearner:
        learner = context.learners[task.learner]
        index, position = period.locate(task)
        batch = there[index].by_learner[position]
        assert batch is not None
        stream, row = learner.stream, made[index][position]
        with torch.no_grad(), context.device.issuing(), context.device.on(stream):
            if task.learner in not_yet_synchronised:
                assert context.order.start_event is not None
                stream.wait(context.order.start_event)
                not_yet_synchronised.discard(task.learner)
            copied = there[index].copied
            if copied is not None:
                stream.wait(copied)
            issued = learner.learn(batch, lambda: context.task_seed(position, rounds_ahead=index))
            step_on_stream(context, learner, issued, row)
        stream.record(learner.finished_event)
        period.take(task)
        return learner

    return issue


def _finished(context: StreamContext, issued: Sequence[IssuedRound], made: Tensor) -> list[FinishedRound]:
    pinned = context.device.pinned(made.shape, made.dtype)
    over = context.device.event("a period is over")
    with context.device.on(context.order.sync_stream):
        pinned.copy_(made, non_blocking=True)
    context.order.sync_stream.record(over)
    over.synchronize()
    restarted = context.stepping is not None
    return [
        FinishedRound(values, each, context.round_index + index, restarted)
        for index, (values, each) in enumerate(zip(context.device.read_host(pinned), issued, strict=True))
    ]
