"""Prepare rounds on a device before they are issued: capture graphs, and allocate results."""

from collections.abc import Iterator, Sequence

import torch

from bow.engines.batches import Batches, FlatBatch, Stacked
from bow.engines.cuda.context import StreamContext
from bow.engines.cuda.pending import PendingRounds
from bow.engines.cuda.runner import DeviceRunner
from bow.errors import BowError, CaptureError, reason


class Captures:
    """Capture learning tasks for new batch shapes, and drop stale captures."""

    def __init__(self, context: StreamContext, runner: DeviceRunner, pending: PendingRounds) -> None:
        self._context = context
        self._cache = context.captures
        self._runner = runner
        self._pending = pending

    def prepare(self, batches: Sequence[Batches]) -> None:
        self._drop_stale()
        for index, each in enumerate(batches):
            for batch in _different(each):
                self._get_ready(batch, self._context.round_index + index)

    def refuse_all(self, why: str) -> None:
        self._pending.catch_up()
        self._cache.refused = why
        self._runner.bind()
        self._context.fork()
        self._context.log.warn(f"{why}; running {self._runner.description}")

    def _get_ready(self, batch: FlatBatch, round_index: int) -> None:
        context, cache, shape = self._context, self._cache, batch.signature
        if not context.has_results:
            context.fork()  # order learning tasks after the caller's changes to the learners
            context.make_results(context.learners[0].probe(batch, context.order.issued))
        if shape is None and cache.refused is None:
            cache.refused = "a batch contains something that is not a dense tensor"
            self._tell_uncaptured("training")
        if shape is None or not cache.wants(shape, batch.leaves, round_index):
            return
        self._pending.catch_up()
        context.device.prepare_captures()
        try:
            cache.add(shape, lambda _: self._runner.capture(batch))
        except (AssertionError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if isinstance(error, BowError) and not isinstance(error, CaptureError):
                raise
            cache.refuse(shape, error)
            if cache.refused is None:  # other shapes are captured, so this shape is the cause
                context.log.warn(f"batches of another shape cannot be captured ({reason(error)}); they run uncaptured")
            else:
                self._tell_uncaptured("model")

    def _tell_uncaptured(self, what: str) -> None:
        why, runner = self._cache.refused, self._runner
        self._context.log.warn(f"engine {runner.name} cannot capture this {what} ({why}); running {runner.description}")

    def _drop_stale(self) -> None:
        """Drop graphs that are stale: the kind of step or a Python value has changed."""
        context = self._context
        if (context.stepping is not None) != context.can_step:  # a hook, a flag of the optimizer
            self._pending.catch_up()
            self._runner.bind()
        elif self._cache.drop_if_changed():
            self._pending.catch_up()
            self._runner.bind()
            if self._cache.refused is not None:
                context.log.warn(f"{self._cache.refused}; running {self._runner.description}")


def _different(batches: Batches) -> Iterator[FlatBatch]:
    """Yield a round's batches, only one of them if they are stacked."""
    if isinstance(batches, Stacked):
        yield FlatBatch.of(batches.value, stacked=True).of_learner(0)
        return
    for batch in batches:
        if batch is not None:
            yield FlatBatch.of(batch)
