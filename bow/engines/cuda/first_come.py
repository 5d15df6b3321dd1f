"""Rounds without a barrier on a device with streams: each learner takes the next batch when it is free."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bow.engines.batches import Batches
from bow.engines.cuda.context import StreamContext
from bow.engines.cuda.feed import DeviceBatches
from bow.engines.cuda.learner import StreamLearner
from bow.engines.cuda.pending import FinishedRound, IssuedRound, PendingRounds
from bow.engines.cuda.results import SLOTS
from bow.engines.cuda.runner import AheadDeviceRunner, step_on_stream
from bow.engines.first_come import Period
from bow.engines.task_scheduler import Learn

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
    """Wait until the device has finished one of these tasks."""
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
        FinishedRound.of(values, each, context.round_index + index, restarted)
        for index, (values, each) in enumerate(zip(context.device.read_host(pinned), issued, strict=True))
    ]
