"""The round on a device with streams: the host issues, events order, and results come later."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from bow.data import Batches, Stacked
from bow.devices import StreamDevice, cuda_device
from bow.engines.batches import FlatBatch
from bow.engines.cuda.context import StreamContext
from bow.engines.cuda.pending import IssuedRound, PendingRounds
from bow.engines.cuda.runner import AheadDeviceRunner, DeviceRunner, issue_ahead
from bow.engines.cuda.transfers import LOSS, METRICS
from bow.engines.cuda.whole_round import UNROLLED, RoundGraphs, unchanged
from bow.engines.live_check import Expected
from bow.engines.loop import Loop, before_step, rounds_to_synchronise, step_learners
from bow.engines.memory import out_of_memory_explained
from bow.engines.outcome import LearningConfig, Outcome
from bow.errors import BowError, CaptureError, reason
from bow.interruption import Uninterrupted
from bow.replicas import LearnerGroup
from bow.sync import Synchroniser, Timing

ROUNDS_TOGETHER = 8  # rounds to issue without a barrier between them


@final
class DeviceRoundLoop(Loop):
    """Rounds on a device with streams: the host issues them and does not wait; events alone order the streams."""

    # * A call begins after the caller's earlier work, and the caller's later work runs after the call (`StreamOrder`).
    #   Rounds within a call have no barrier between them.
    # * Learner j's stream: its batch arrives; learning task; step.
    # * The synchronisation stream has a high priority. It computes what a synchronisation task needs from before the
    #   step while the learners learn; after their steps it moves the central model.
    # * The host sees a round's results `SLOTS` rounds later, and then restarts diverged learners (`PendingRounds`).

    brings_batches = True
    context: StreamContext

    def __init__(
        self,
        kind: type[DeviceRunner],
        group: LearnerGroup,
        sync: Synchroniser,
        settings: LearningConfig,
        device: StreamDevice | None = None,
    ) -> None:
        context = StreamContext(group, sync, settings, cuda_device(group.device) if device is None else device)
        super().__init__(context, kind.name, keeps_step=not issubclass(kind, AheadDeviceRunner))
        if context.kernels.reason is not None:
            context.log.record_event("kernels", f"no custom kernels, using PyTorch (slower): {context.kernels.reason}")
        context.kernels.launch_once()
        self._warn_of_library_dropout()
        self.runner = kind(context)
        self._last: Batches | None = None  # that a capture may have been replayed for
        self._pending = PendingRounds(context)
        self._captures = Captures(context, self.runner, self._pending)
        self.runner.bind()

    @property
    def description(self) -> str:
        return self.runner.description

    @property
    def period(self) -> int:
        if self.settings.engine.dispatch == "fixed":
            return ROUNDS_TOGETHER
        if not isinstance(self.runner, AheadDeviceRunner) or len(self.group) == 1:
            return 1
        return rounds_to_synchronise(self.context)

    def round(self, batches: Batches) -> Outcome:
        return self.rounds([batches])[0]

    @torch.no_grad()
    def rounds(self, batches: Sequence[Batches]) -> list[Outcome]:
        if not batches:
            return []
        context, order = self.context, self.context.order
        memory = out_of_memory_explained(len(self.group), context.device.torch_device, self.settings.engine.offload)
        with context.device.issuing(), memory:
            try:
                self._captures.prepare(batches)
                results = context.results
                made = results.empty(len(batches))
                context.fork()
                issued = self._issue_call(batches, made)
                if self.runner.replays and self._chosen(batches[-1]) is not None:
                    self._last = batches[-1]
            except BaseException:  # divergence, a user's error, Ctrl-C: some streams may not be joined
                order.abandon(self.runner.streams())
                raise
            finally:
                order.join()
            return results.outcomes(made, [each.active for each in issued], [each.taken_by for each in issued])

    def catch_up(self) -> None:
        self._pending.catch_up()

    @torch.no_grad()
    def check_last(self) -> None:
        """Issue the learning tasks of the last round once more, and undo what they and the steps behind them write."""
        self.catch_up()
        live, order, index = self.context.live, self.context.order, self.context.round_index
        due = self.context.averaging.due(index)
        for _ in range(2):  # the second is the closer look that the first may ask for
            if self._last is None or self.context.captures.refused is not None or not live.has_unchecked(index):
                return
            difference = None
            with self.context.device.issuing():
                with unchanged(dict(enumerate(self.group.held))):
                    self.context.fork()
                    expected = self._expected(self._last)
                    if expected is not None:
                        slot = self._pending.make_room()
                        there = self.context.feed.put(slot, self._last, len(self.group))
                        self.runner.issue(slot, there, due)
                        with self.context.device.on(order.sync_stream):
                            difference = self._difference(expected, slot)
                        order.learners_moved()
                        order.join()
                order.wait_for_caller()  # what was restored may be freed next
            if expected is None:
                return
            if difference is not None:
                self.context.log.warn(difference)

    def close(self) -> None:
        try:
            self.catch_up()
        finally:
            try:
                if self.context.offloaded is not None:
                    self.context.offloaded.close()
            finally:
                self.runner.close()

    @property
    def engine_state(self) -> dict[str, Any]:
        captures = self.context.captures
        return {f"{self.runner.name} on a device": {**self.runner.state, "failed": captures.refused, **captures.state}}

    def load_engine(self, state: Mapping[str, Any]) -> None:
        if own := state.get(f"{self.runner.name} on a device"):
            self.runner.load(own)
            self.runner.bind()
            self.context.captures.load(own)
            if (why := own["failed"]) is not None:
                self._captures.refuse_all(f"capturing had been disabled before the checkpoint ({why})")
                self.context.captures.refused = why

    def _resized(self) -> None:
        self._last = None  # holds a batch for each of the previous learners
        self.runner.bind()

    def _issue_call(self, batches: Sequence[Batches], made: Tensor) -> list[IssuedRound]:
        issued: list[IssuedRound] = []
        while (done := len(issued)) < len(batches):
            ahead = self._num_ahead(len(batches) - done)
            several = slice(done, done + UNROLLED)
            if ahead and isinstance(self.runner, AheadDeviceRunner):
                part = slice(done, done + ahead)
                issued += issue_ahead(self.context, self.runner, self._pending, batches[part], made[part])
            elif isinstance(self.runner, RoundGraphs) and self._unrolls(self.runner, batches[several]):
                issued += self._issue_unrolled(self.runner, batches[several], made[several])
            else:
                issued.append(self._issue(batches[done], made[done]))
        return issued

    def _num_ahead(self, rounds: int) -> int:
        """Return how many coming rounds, before a synchronisation task, need no order of learners."""
        if self.settings.engine.dispatch == "fixed" or len(self.group) == 1 or self._check_is_due():
            return 0
        together = min(self.period, rounds)
        return together - self.context.averaging.due(self.context.round_index + together - 1)

    def _unrolls(self, runner: RoundGraphs, batches: Sequence[Batches]) -> bool:
        """Return whether these rounds run as one graph; always the same ones, unless one must be observed."""
        context = self.context
        if context.round_index % UNROLLED or context.log.spans is not None or not runner.unrolls(batches):
            return False
        context.restarts.observe_learning_rate()
        drops = self.sync.restarts_on_drop and context.restarts.drop.pending
        return not drops and context.live.rounds_before(context.round_index) >= UNROLLED

    def _issue_unrolled(self, runner: RoundGraphs, batches: Sequence[Batches], made: Tensor) -> list[IssuedRound]:
        context, order = self.context, self.context.order
        slot = self._pending.make_room(len(batches))
        there = [context.feed.put(slot + index, each, len(self.group)) for index, each in enumerate(batches)]
        with Uninterrupted():
            runner.issue_unrolled(slot, there)
            order.start_event = None
            with context.device.on(order.sync_stream):
                if self.sync.follows(self.group.num_all):
                    runner.followed()
                for index, own in enumerate(made):
                    context.results.collect(slot + index, own)
            for index, each in enumerate(there):
                self._pending.add(slot + index, each.active)
                context.log.round_index += 1
        return [IssuedRound(each.active) for each in there]

    def _issue(self, batches: Batches, made: Tensor) -> IssuedRound:
        context, order = self.context, self.context.order
        slot = self._pending.make_room()
        due = context.averaging.due(context.round_index)
        context.restarts.observe_learning_rate()
        began = time.perf_counter_ns()
        expected = self._expected(batches) if self._check_is_due() else None
        there = context.feed.put(slot, batches, len(self.group))
        in_parts = context.stepping is None
        if in_parts:
            with context.device.on(order.sync_stream):
                context.averaging.begin(due)
        with Uninterrupted():  # issued work cannot be undone
            self.runner.issue(slot, there, due)
            order.start_event = None
            if self.runner.steps_last:
                order.learners_moved()
            with context.device.on(order.sync_stream):
                difference = None if expected is None else self._difference(expected, slot)
                if in_parts:
                    self._step(slot, there.active, due)
                if self.sync.follows(self.group.num_all):
                    self.group.matrix.z.copy_(self.group.matrix.weights[0])
                    self.runner.followed()
                if due and context.restarts.after_drop():
                    order.learners_moved()
                context.results.collect(slot, made)
            self._pending.add(slot, there.active)
            context.log.round_index += 1
        context.log.record("issued", "round", began)
        if difference is not None:
            self._captures.refuse_all(difference)
        return IssuedRound(there.active)

    def _step(self, slot: int, active: list[bool], due: bool) -> None:
        """Run optimizer and synchroniser in PyTorch, for all learners after all learning tasks."""
        context, results = self.context, self.context.results
        outcome = results.outcome(results.rows[slot], active)
        # Only the device knows who diverged: no step can be skipped, but one with a zero gradient is harmless.
        self.group.matrix.gradients.masked_fill_(~outcome.finite.unsqueeze(1), 0)
        if self.sync.timing is not Timing.BEFORE_STEP:
            outcome.healthy = active  # else the host waits, as a mean of gradients must leave out diverged learners
        # Checking weights would synchronise host and device; infinite ones show in the next loss, or in z.
        step_learners(context, before_step(context, outcome, due))
        if due:
            context.averaging.after_step(context.round_index)
        context.order.learners_moved()

    # Live check

    def _check_is_due(self) -> bool:
        return self.runner.replays and self.context.live.is_due(self.context.round_index)

    def _expected(self, batches: Batches) -> Expected | None:
        """Run the user's own step on one learner's batch, after waiting for all rounds."""
        context, chosen = self.context, self._chosen(batches)
        if chosen is None:
            return None
        index, batch = chosen
        self._pending.finish_all()
        context.order.join()
        context.fork()
        learner, seed = context.learners[index], context.task_seed(index)
        expected = learner.expect(context.live, batch, context.order.issued, seed, self.runner.draws_as_eager)
        learner.finished_event.synchronize()  # later work is issued after it
        return expected

    def _chosen(self, batches: Batches) -> tuple[int, FlatBatch] | None:
        """Return the learner to compare with the step, and its batch; None if no batch has been captured."""
        if isinstance(batches, Stacked):
            whole = FlatBatch.of(batches.value, stacked=True)
            dealt: list[FlatBatch | None] = [whole.of_learner(index) for index in range(len(self.group))]
        else:
            dealt = [None if batch is None else FlatBatch.of(batch) for batch in batches]
        index = self.context.live.choose([None if batch is None else batch.signature for batch in dealt])
        batch = None if index is None else dealt[index]
        return None if index is None or batch is None else (index, batch)

    def _difference(self, expected: Expected, slot: int) -> str | None:
        """Return how an issued round differs from the step; waits for its learning tasks."""
        live, results = self.context.live, self.context.results
        row = results.rows_of_learners[slot][expected.learner].clone()
        metrics = {name: row[METRICS + index] for index, name in enumerate(results.metrics)}
        made = live.results_of(expected.learner, row[LOSS], metrics)
        return live.compare([made], expected, self.context.round_index)

    def _warn_of_library_dropout(self) -> None:
        for name, module in self.group.template.named_modules():
            if isinstance(module, nn.RNNBase) and module.dropout and module.num_layers > 1:
                self.context.log.warn(
                    f"{name or type(module).__name__} uses cuDNN dropout, whose state is shared by all learners: "
                    "this training cannot be repeated exactly; use single layers with nn.Dropout between them"
                )
                return


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
    if isinstance(batches, Stacked):
        yield FlatBatch.of(batches.value, stacked=True).of_learner(0)
        return
    for batch in batches:
        if batch is not None:
            yield FlatBatch.of(batch)
