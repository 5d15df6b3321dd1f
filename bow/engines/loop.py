"""The order of a round: averaging begins, learning tasks, step, averaging ends, restarts."""

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Shaped
from torch import Tensor

from bow.data import Batches, Indexed, Stacked
from bow.devices import StreamDevice
from bow.engines.batches import gathered
from bow.engines.context import RoundContext
from bow.engines.memory import out_of_memory_explained
from bow.engines.outcome import LearningConfig, Outcome, RoundEvent
from bow.engines.runner import AheadRunner, SeedOf, TaskRunner
from bow.errors import warn_user
from bow.interruption import Uninterrupted
from bow.replicas import LearnerGroup
from bow.schedule import Span
from bow.sync import DropRule, Synchroniser, Timing

if TYPE_CHECKING:
    from bow.engines.graph import ReadyTurns
    from bow.graph import StepGraph

# Limit of first-come rounds passed to an engine at once, so that not all batches of an epoch are in memory.
MAX_ROUNDS_TOGETHER = 64
GROUP_ROUNDS, GROUP_S = 256, 0.05  # limits of rounds that run without Python between them, and of their seconds


class Loop(abc.ABC):
    """The rounds of one device: `RoundLoop` on a host, `DeviceRoundLoop` on a device with streams."""

    brings_batches = False  # whether the loop gathers samples itself, and copies batches to its device
    takes_indices = False  # whether full rounds come as indices of samples, and may run in groups

    def __init__(self, context: RoundContext, name: str, *, keeps_step: bool) -> None:
        self.context = context
        self.group = context.group
        self.sync = context.sync
        self.settings = context.settings
        self.ended: list[Outcome] = []  # of the rounds that the last call of `rounds` has ended, also if it raised
        self.is_undone = True  # whether the round that failed has left the learners as they were before it
        if context.settings.engine.dispatch == "first_come" and keeps_step:
            warn_user(
                f'dispatch="first_come" has no effect in engine {name}, whose learners run in lockstep; '
                'use engine="graph" or "streams", or leave it out',
            )
        context.averaging.check(context.group.by_device)
        context.sync.start(context.group.matrix)

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """Name of the engine that actually runs, after any fallback."""

    @property
    @abc.abstractmethod
    def period(self) -> int:
        """Number of coming rounds that can be passed to `rounds` at once."""

    @abc.abstractmethod
    def round(self, batches: Batches) -> Outcome:
        """Run one learning task of every learner and, when it is due, the synchronisation task."""

    @abc.abstractmethod
    def rounds(self, batches: Sequence[Batches]) -> list[Outcome]:
        """Run several rounds."""

    @property
    def most_turns(self) -> int:
        """Number of learning tasks that each learner can run next without waiting for others; 0: run a round."""
        return 0

    def turns(self, batches: Sequence[Indexed | None], seed_of: SeedOf) -> "ReadyTurns | None":
        """Prepare each learner's batches [turns, batch] to run one after another; None: they have to run as rounds."""
        return None

    @abc.abstractmethod
    def check_last(self) -> None:
        """After the last round, compare what was captured with the step, and warn of a difference."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop the threads and free pinned memory; the next round reallocates both."""

    @property
    @abc.abstractmethod
    def engine_state(self) -> dict[str, Any]:
        """Plain values that decide how later rounds run on this device; `load_engine` restores them."""

    @abc.abstractmethod
    def load_engine(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `engine_state` returned."""

    @abc.abstractmethod
    def _resized(self) -> None:
        """Called after learners were added or removed."""

    def catch_up(self) -> None:  # noqa: B027 - on a host, a round has ended when `round` returns
        """Wait for pending rounds, and handle their outcomes."""

    @property
    def compilable(self) -> "StepGraph | None":
        """The step graph of the learning task, known after the first round; None if it cannot be compiled."""
        return None

    @property
    def round_index(self) -> int:
        return self.context.round_index

    @property
    def num_restarts(self) -> int:
        self.catch_up()
        return self.context.restarts.num_restarts

    @property
    def is_hopeless(self) -> bool:
        return self.context.restarts.is_hopeless

    def resize(self, learners: int) -> None:
        """Set the number of learners: new ones start from `z`, the last ones go; all devices call it together."""
        averaging, group = self.context.averaging, self.group
        wanted = group.world.all_gather(learners)
        averaging.check(wanted)
        if any(more > now for more, now in zip(wanted, group.by_device, strict=True)):
            self.catch_up()
            averaging.settle()
            self.sync.grow(group.matrix, averaging.num_averaged)
        try:
            while len(group) > learners:
                self._change(group.remove)
            while len(group) < learners:
                self._change(self._add_learner, undo=group.remove)
                if self.sync.timing is Timing.BEFORE_STEP:  # learners stay equal only with equal optimizer states
                    group.optimizer.copy_state(source=0, target=len(group) - 1)
        finally:
            group.count()

    def _add_learner(self) -> None:
        self.group.add()
        rows = self.group.matrix
        rows.weights[len(self.group) - 1].copy_(self.sync.center(rows))

    def _change(self, change: Callable[[], None], undo: Callable[[], None] | None = None) -> None:
        self.catch_up()
        followed = self.sync.follows(self.group.num_all)
        change()
        if followed:
            self.context.start_averaging()
        try:
            self._resized()
        except BaseException:  # no stream or no memory is left for it
            if undo is not None:
                undo()
                self._resized()
            raise

    def settle(self) -> None:
        self.catch_up()
        self.context.averaging.settle()

    def record_spans(self) -> None:
        self.context.log.spans = []

    def take_spans(self) -> list[Span]:
        spans, self.context.log.spans = self.context.log.spans or [], None
        return spans

    def take_events(self) -> list[RoundEvent]:
        events, self.context.log.events = self.context.log.events, []
        return events

    def resume(
        self, round_index: int, restarts: int, drop: Mapping[str, Any], engine: Mapping[str, Any] | None
    ) -> None:
        """Continue after a round of an earlier training; `engine` is None if its engine's state is unknown."""
        log = self.context.log
        log.round_index = round_index
        # Those of construction, too: a report takes an attempt's first round for the one it continued at.
        log.events = [dataclasses.replace(event, round=round_index) for event in log.events]
        if engine:
            self.load_engine(engine)
        self.context.restarts.num_restarts = restarts
        self.context.restarts.drop = DropRule(**drop)


def rounds_to_synchronise(context: RoundContext) -> int:
    """Return the number of rounds up to and with the next synchronisation task, at most MAX_ROUNDS_TOGETHER."""
    ahead = range(1, MAX_ROUNDS_TOGETHER)
    due = context.averaging.due
    return next((n for n in ahead if due(context.round_index + n - 1)), MAX_ROUNDS_TOGETHER)


@final
class RoundLoop(Loop):
    """Rounds on the host; each has ended when the call returns."""

    def __init__(
        self,
        kind: type[TaskRunner],
        group: LearnerGroup,
        sync: Synchroniser,
        settings: LearningConfig,
        device: StreamDevice | None = None,
    ) -> None:
        context = RoundContext(group, sync, settings, device)
        super().__init__(context, kind.name, keeps_step=not issubclass(kind, AheadRunner))
        self.runner = kind(self.context)
        self.brings_batches = kind.gathers and settings.engine.dispatch == "fixed"
        self._has_stepped = False
        self._round_s = math.inf  # seconds of a round, as last measured

    @property
    def description(self) -> str:
        return self.runner.description

    @property
    def compilable(self) -> "StepGraph | None":
        return self.runner.compilable

    @property
    def period(self) -> int:
        if self.takes_indices:
            most = min(int(GROUP_S / self._round_s), GROUP_ROUNDS)
            return max(1, min(most, self.most_turns)) if most > 1 else 1
        if self.settings.engine.dispatch == "fixed" or not self.runner.runs_ahead or len(self.group) == 1:
            return 1
        return rounds_to_synchronise(self.context)

    def rounds(self, batches: Sequence[Batches]) -> list[Outcome]:
        self.ended = []
        while left := batches[len(self.ended) :]:
            period = self.period if len(left) > 1 else 1
            together = self._rounds_in_group if self.settings.engine.dispatch == "fixed" else self._rounds_ahead
            if period == 1 or not together(left[:period]):
                self.ended.append(self.round(left[0]))
        return self.ended

    @torch.no_grad()
    def round(self, batches: Batches) -> Outcome:
        context, batches = self.context, gathered(batches)
        due, began = context.averaging.due(context.round_index), time.perf_counter()
        self._has_stepped = self.is_undone = False
        context.snapshot.discard()
        with Uninterrupted(lambda: self._has_stepped or self.runner.has_written):
            try:
                context.restarts.observe_learning_rate()
                with out_of_memory_explained(len(self.group), self.group.device, self.settings.engine.offload):
                    outcome = self.runner.learn_and_step(batches, due, self._in_parts)
            except BaseException:
                if not (self._has_stepped or self.runner.has_written):
                    self._has_stepped = True  # Ctrl-C waits for it
                    context.snapshot.restore()
                    self.is_undone = True
                raise
            self._end_round(outcome, due)
        self._round_s = time.perf_counter() - began
        return outcome

    @property
    def most_turns(self) -> int:
        return 0 if self.context.log.spans is not None else self.runner.most_turns

    @torch.no_grad()
    def turns(self, batches: Sequence[Indexed | None], seed_of: SeedOf) -> "ReadyTurns | None":
        return self.runner.turns(batches, seed_of)

    @torch.no_grad()
    def check_last(self) -> None:
        self.runner.check_last()

    def close(self) -> None:
        self.runner.close()

    @property
    def engine_state(self) -> dict[str, Any]:
        return {self.runner.name: self.runner.state}

    def load_engine(self, state: Mapping[str, Any]) -> None:
        if own := state.get(self.runner.name):
            self.runner.load(own)

    def _resized(self) -> None:
        self._round_s = math.inf
        self.runner.resized()

    def _in_parts(self, batches: Batches, due: bool) -> Outcome:
        averaging, log = self.context.averaging, self.context.log
        averaging.begin(due)
        began = time.perf_counter_ns()
        with averaging.overlapping_sum():
            outcome = self.runner.learn(batches)
        log.record("learning tasks", "round", began)
        began = time.perf_counter_ns()
        self._step(outcome, due)
        log.record("step and averaging" if due else "step", "round", began)
        return outcome

    def _step(self, outcome: Outcome, due: bool) -> None:
        context = self.context
        stepping = before_step(context, outcome, due)
        self._has_stepped = True
        step_learners(context, stepping)
        context.restarts.after_step(outcome, due)
        if due:
            context.averaging.after_step(context.round_index)

    def _end_round(self, outcome: Outcome, due: bool) -> None:
        context, rows = self.context, self.group.matrix
        restarts = context.restarts
        if self.sync.follows(self.group.num_all) and not (restarts.replaces_weights and outcome.any_diverged):
            rows.z.copy_(rows.weights[0])
        restarts.count(outcome, context.round_index)
        if outcome.any_diverged:
            restarts.restart(outcome.diverged)
        if due:
            restarts.after_drop()
        context.log.round_index += 1

    @torch.no_grad()
    def _rounds_in_group(self, batches: Sequence[Batches]) -> bool:
        """Run rounds without Python between them, as far as they go well; return whether there was one."""
        context = self.context
        context.restarts.observe_learning_rate()
        began, first = time.perf_counter(), context.round_index
        full: list[Indexed] = []
        for each in batches:
            if not (isinstance(each, Stacked) and isinstance(each.value, Indexed)):
                break  # a short round, which is the last
            full.append(each.value)
        due = [context.averaging.due(index) for index in range(first, first + len(full))]
        if any(due) and self.sync.restarts_on_drop and context.restarts.drop.pending:
            return False
        with Uninterrupted():
            self.is_undone = False
            outcomes = self.runner.rounds(full, due)
            if not outcomes:
                return False
            for outcome in outcomes[:-1]:
                context.restarts.count(outcome, context.round_index)
                context.log.round_index += 1
                self.ended.append(outcome)
            self._end_round(outcomes[-1], due[len(outcomes) - 1])
            self.ended.append(outcomes[-1])
        self._round_s = (time.perf_counter() - began) / len(outcomes)
        return True

    @torch.no_grad()
    def _rounds_ahead(self, batches: Sequence[Batches]) -> bool:
        """Run those of these rounds that need no barrier between them, if there are several; return whether."""
        runner = self.runner
        if len(batches) == 1 or not isinstance(runner, AheadRunner):
            return False
        batches = batches[: runner.num_ahead(batches)]
        if len(batches) < 2:
            return False
        context = self.context
        due = context.averaging.due(context.round_index + len(batches) - 1)
        self.is_undone = False
        context.snapshot.discard()
        context.restarts.observe_learning_rate()
        self.group.gather_buffers()  # for learners that restart meanwhile
        with Uninterrupted():  # learners step during these rounds
            with out_of_memory_explained(len(self.group), self.group.device, self.settings.engine.offload):
                outcomes = runner.learn_ahead(batches, due)
            for outcome in outcomes[:-1] if due else outcomes:
                context.restarts.count(outcome, context.round_index)
                context.log.round_index += 1
                self.ended.append(outcome)
            if due:
                # All learning tasks have ended, and none of this round has stepped: every w_j is what it was before.
                context.averaging.begin(due)
                self._step(outcomes[-1], due)
                self._end_round(outcomes[-1], due)
                self.ended.append(outcomes[-1])
        return True


def before_step(context: RoundContext, outcome: Outcome, due: bool) -> list[bool]:
    """Average gradients, if the synchroniser does so, and return which learners step; none has changed yet."""
    if outcome.any_diverged:
        for learner, diverged in zip(context.group.learners, outcome.diverged, strict=True):
            if diverged:
                learner.gradient.zero_()
                context.snapshot.restore_buffers(learner)
    return context.averaging.before_step(outcome.healthy) if due else outcome.healthy


def step_learners(context: RoundContext, stepping: Sequence[bool]) -> None:
    """Step learners with their gradients, clipped."""
    clip(context.group.matrix.gradients, context.settings.clip_norm)
    context.group.optimizer.step(stepping)


def step_row(context: RoundContext, learner: int) -> None:
    clip(context.group.matrix.gradients[learner : learner + 1], context.settings.clip_norm)
    context.group.optimizer.step([j == learner for j in range(len(context.group))])


def step_alone(context: RoundContext, learner: int, finite: bool) -> bool:
    """Step one learner with its gradient while others learn; not thread-safe."""
    # A diverged learner restarts from `z`, which does not move meanwhile, with the buffers that the central model had
    # when these rounds began: the other learners are writing to theirs.
    group = context.group
    if finite:
        step_row(context, learner)
        finite = bool(torch.isfinite(group.matrix.weights[learner].sum()))
    if not finite:
        context.restarts.restart([j == learner for j in range(len(group))], gather=False)
    return finite


def clip(gradients: Shaped[Tensor, "learners parameters"], limit: float | None) -> None:
    if limit is not None:
        gradients.mul_(clip_factors(gradients, limit))


def clip_factors(gradients: Shaped[Tensor, "learners parameters"], limit: float) -> Shaped[Tensor, "learners 1"]:
    """Return the factors that scale each learner's gradient to a norm of at most `limit`."""
    norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    return torch.clamp(limit / (norms + 1e-6), max=1.0)
