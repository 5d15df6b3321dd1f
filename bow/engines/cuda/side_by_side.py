"""A round on the streams of the learners and the synchronisation stream."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from bow.engines.batches import FlatBatch
from bow.engines.cuda.context import DeviceContext
from bow.engines.cuda.feed import DeviceBatches
from bow.engines.cuda.learner import IssuedTask, StreamLearner
from bow.engines.cuda.step import SgdStep
from bow.engines.loop import step_row

Learn: TypeAlias = Callable[[StreamLearner, FlatBatch], IssuedTask]
"""Issues a learning task on the current stream."""

ForEach: TypeAlias = Callable[[Callable[[StreamLearner], None]], None]
"""Issues something for each learner; when it returns, everything has been issued."""

ONE_OPTIMIZER = threading.Lock()
"""Held while one learner steps with the optimizer of all."""


def issue_side_by_side(
    context: DeviceContext,
    batches: DeviceBatches,
    rows: Sequence[Tensor],
    due: bool,
    learn: Learn,
    for_each: ForEach | None = None,
) -> None:
    """Issue a round; the synchronisation stream comes last. Results go to `rows`, by learner."""
    stepping, sync_stream, learners = context.stepping, context.order.sync_stream, context.learners
    if stepping is not None:
        with context.device.on(sync_stream):
            if due:
                stepping.center()
        sync_stream.record(stepping.centered)
    tasks: list[IssuedTask | None] = [None] * len(learners)

    def issue(learner: StreamLearner) -> None:
        tasks[learner.index] = _learn(context, learner, batches, rows, learn)

    if for_each is None:
        for learner in learners:
            issue(learner)
    else:
        for_each(issue)
    # No learner steps before all have issued their learning tasks: one that fails leaves all weights as they were.
    for learner, task in zip(learners, tasks, strict=True):
        if stepping is not None:
            _step(context, stepping, learner, task, due)
        learner.stream.record(learner.through)
        sync_stream.wait(learner.through)
    if stepping is not None and due:
        with context.device.on(sync_stream):
            stepping.commit()


def learn_one(context: DeviceContext, learner: StreamLearner, batch: FlatBatch) -> IssuedTask:
    """Issue a learning task of the coming round on the current stream."""
    return learner.learn(batch, lambda: context.task_seed(learner.index))


def step_on_stream(context: DeviceContext, learner: StreamLearner, task: IssuedTask) -> None:
    """Step one learner alone on its stream, without averaging; the central model does not move meanwhile."""
    stepping = context.stepping
    if stepping is not None:
        stepping.row(learner.index, task.finite, synchronise=False)
        return
    gradient = context.group.matrix.gradients[learner.index : learner.index + 1]
    gradient.masked_fill_(~task.finite, 0)
    with ONE_OPTIMIZER:  # a step takes the others' gradients away from the optimizer
        step_row(context, learner.index)


def _learn(
    context: DeviceContext, learner: StreamLearner, batches: DeviceBatches, rows: Sequence[Tensor], learn: Learn
) -> IssuedTask | None:
    batch, stream = batches.by_learner[learner.index], learner.stream
    with context.device.on(stream):
        if context.order.gate is not None:
            stream.wait(context.order.gate)
        if batch is None:
            context.group.learners[learner.index].gradient.zero_()
            rows[learner.index].fill_(torch.nan)
            return None
        if batches.copied is not None:
            stream.wait(batches.copied)
        task = learn(learner, batch)
        context.results.check(task.metrics)
        rows[learner.index].copy_(task.results)
        return task


def _step(
    context: DeviceContext, stepping: SgdStep, learner: StreamLearner, task: IssuedTask | None, due: bool
) -> None:
    with context.device.on(learner.stream):
        learner.stream.wait(stepping.centered)
        if task is not None:
            stepping.row(learner.index, task.finite, due)
        elif due:
            stepping.correct(learner.index)
