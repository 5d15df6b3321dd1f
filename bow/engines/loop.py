"""The order of a round: averaging begins, learning tasks, step, averaging ends, restarts."""

import abc
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from jaxtyping import Shaped
from torch import Tensor

from bow.data import Indexed
from bow.devices import StreamDevice
from bow.engines.context import RoundContext
from bow.engines.memory_budget import out_of_memory_explained
from bow.engines.outcome import Batches, LearningConfig, Outcome, RoundEvent, Turns
from bow.engines.resizing import Resizing
from bow.engines.runner import AheadRunner, SeedOf, TaskRunner
from bow.interruption import Uninterrupted
from bow.replicas import LearnerGroup
from bow.schedule import Span
from bow.sync import DropRule, Synchroniser

MAX_ROUNDS_TOGETHER = 64
"""Rounds that are handed to an engine at once, at most, so that not all batches of an epoch are in memory."""

TURNS_S = 0.1
"""What learners may take without anybody seeing to signals and progress."""


class Loop(abc.ABC):
    """The rounds of one device: `RoundLoop` on a host, `DeviceRoundLoop` on a device with streams."""

    brings_batches: ClassVar[bool] = False
    """Whether it brings batches to its device itself, where learners do not compute on the host."""

    def __init__(self, context: RoundContext, name: str, *, keeps_step: bool) -> None:
        self.context = context
        self.group = context.group
        self.sync = context.sync
        self.settings = context.settings
        if context.settings.dispatch == "first_come" and keeps_step:
            warnings.warn(
                f'dispatch="first_come" has no effect in engine {name}, whose learners keep step; '
                'use engine="graph" or "streams", or leave it out',
                stacklevel=5,
            )
        context.averaging.check(context.group.by_device)
        context.sync.start(context.group.matrix)

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The name of what really runs, after any fallback."""

    @property
    @abc.abstractmethod
    def period(self) -> int:
        """How many of the next rounds can be handed to `rounds` at once."""

    @abc.abstractmethod
    def round(self, batches: Batches) -> Outcome:
        """One learning task of every learner and, when it is due, the synchronisation task."""

    @abc.abstractmethod
    def rounds(self, batches: Sequence[Batches]) -> list[Outcome]:
        """Some rounds."""

    @property
    def most_turns(self) -> int:
        """How many learning tasks each learner can take next without waiting for others, where it owes them nothing."""
        return 1

    def turns(self, batches: Sequence[Indexed | None], seed_of: SeedOf) -> list[Turns | None] | None:
        """Let each learner take its batches [turns, batch], one after another; None: they go by rounds instead."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """End threads, and give pinned memory back; the next round takes them anew."""

    @property
    @abc.abstractmethod
    def engine_state(self) -> dict[str, Any]:
        """What decides how later rounds run on this device, as plain values; `load_engine` takes it."""

    @abc.abstractmethod
    def load_engine(self, state: Mapping[str, Any]) -> None:
        """Run rounds as another training would have."""

    @abc.abstractmethod
    def _resized(self) -> None:
        """Learners were added or removed."""

    def catch_up(self) -> None:  # noqa: B027 - on a host, a round has ended when `round` returns
        """Wait for rounds that are still under way, and act on what has come of them."""

    @property
    def compile_s(self) -> float | None:
        """Seconds that compiling the learning task may take, 0 where it was done before; None: there is no choice."""
        return None

    @property
    def round_index(self) -> int:
        """Completed rounds."""
        return self.context.round_index

    @property
    def num_restarts(self) -> int:
        """How often a learner diverged and started again from z."""
        self.catch_up()
        return self.context.restarts.num_restarts

    @property
    def is_hopeless(self) -> bool:
        """Whether all learners of this device have diverged round after round."""
        return self.context.restarts.is_hopeless

    def resize(self, learners: int) -> None:
        """Have so many learners; new ones start from `z`, and the last ones go.

        Where there are several devices, all do this behind the same round, each with a number of its own.
        """
        Resizing(self.context, self.catch_up, self._resized).resize(learners)

    def settle(self) -> None:
        """Make `z` what the training has reached, for synchronisers that do not move it as they go."""
        self.catch_up()
        self.context.averaging.settle()

    def record_spans(self) -> None:
        """Record from now on what runs when."""
        self.context.log.spans = []

    def take_spans(self) -> list[Span]:
        """What has run since `record_spans`; nothing is recorded any more."""
        spans, self.context.log.spans = self.context.log.spans or [], None
        return spans

    def take_events(self) -> list[RoundEvent]:
        """What happened since the last call and a user should know."""
        events, self.context.log.events = self.context.log.events, []
        return events

    def resume(
        self, round_index: int, restarts: int, drop: Mapping[str, Any], engine: Mapping[str, Any] | None
    ) -> None:
        """Go on behind a round of another training; None: what its engine had come to is not known."""
        if engine:
            self.load_engine(engine)
        self.context.log.round_index = round_index
        self.context.restarts.num_restarts = restarts
        self.context.restarts.drop = DropRule(**drop)


def rounds_to_synchronise(context: RoundContext) -> int:
    """How many rounds there are up to and with the next synchronisation task, as far as they are run as one."""
    ahead = range(1, MAX_ROUNDS_TOGETHER)
    due = context.averaging.due
    return next((n for n in ahead if due(context.round_index + n - 1)), MAX_ROUNDS_TOGETHER)


@final
class RoundLoop(Loop):
    """Rounds on the host: one has ended when the call returns."""

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
        self._round_s = TURNS_S  # what one takes
        self._has_stepped = False

    @property
    def description(self) -> str:
        return self.runner.description

    @property
    def compile_s(self) -> float | None:
        return self.runner.compile_s

    @property
    def period(self) -> int:
        """Those up to the next synchronisation task where learners take batches as they come, otherwise one."""
        if self.settings.dispatch == "fixed" or not self.runner.runs_ahead or len(self.group) == 1:
            return 1
        return rounds_to_synchronise(self.context)

    def rounds(self, batches: Sequence[Batches]) -> list[Outcome]:
        """Some rounds; with `dispatch="first_come"` there is no barrier between synchronisation tasks."""
        outcomes: list[Outcome] = []
        while left := batches[len(outcomes) :]:
            period = self.period
            outcomes += (self._rounds_ahead(left[:period]) if period > 1 else []) or [self.round(left[0])]
        return outcomes

    @torch.no_grad()
    def round(self, batches: Batches) -> Outcome:
        context, began = self.context, time.perf_counter()
        due = context.averaging.due(context.round_index)
        self._has_stepped = False
        context.before.forget()
        with Uninterrupted(lambda: self._has_stepped or self.runner.has_written):
            try:
                context.restarts.observe_learning_rate()
                with out_of_memory_explained(len(self.group), self.group.device, self.settings.offload):
                    outcome = self.runner.learn_and_step(batches, due, self._in_parts)
            except BaseException:
                if not (self._has_stepped or self.runner.has_written):
                    self._has_stepped = True  # Ctrl-C waits for it
                    context.before.put_back()
                raise
            self._end_round(outcome, due)
        self._round_s = time.perf_counter() - began
        return outcome

    @property
    def most_turns(self) -> int:
        if self.context.log.spans is not None:
            return 1
        return max(1, min(self.runner.most_turns, int(TURNS_S / max(self._round_s, 1e-9))))

    @torch.no_grad()
    def turns(self, batches: Sequence[Indexed | None], seed_of: SeedOf) -> list[Turns | None] | None:
        began = time.perf_counter()
        with out_of_memory_explained(len(self.group), self.group.device, self.settings.offload):
            taken = self.runner.turns(batches, seed_of)
        if taken is not None:
            count = max(len(each.losses) for each in taken if each is not None)
            self.context.log.round_index += count
            self._round_s = (time.perf_counter() - began) / count
        return taken

    def close(self) -> None:
        self.runner.close()

    @property
    def engine_state(self) -> dict[str, Any]:
        return {self.runner.name: self.runner.state}

    def load_engine(self, state: Mapping[str, Any]) -> None:
        if own := state.get(self.runner.name):
            self.runner.load(own)

    def _resized(self) -> None:
        self.runner.resized()

    def _in_parts(self, batches: Batches, due: bool) -> Outcome:
        """Learning tasks, optimizer and, when it is `due`, the synchronisation task, in the order of its timing."""
        averaging, log = self.context.averaging, self.context.log
        averaging.begin(due)
        began = time.perf_counter_ns()
        with averaging.beside_the_sum():
            outcome = self.runner.learn(batches)
        log.record("learning tasks", "round", began)
        began = time.perf_counter_ns()
        self._step(outcome, due)
        log.record("step and averaging" if due else "step", "round", began)
        return outcome

    def _step(self, outcome: Outcome, due: bool) -> None:
        """The optimizer, and the rest of a synchronisation task."""
        context, self._has_stepped = self.context, True
        step_learners(context, outcome, due)
        context.restarts.after_step(outcome)
        if due:
            context.averaging.after_step(context.round_index)

    def _end_round(self, outcome: Outcome, due: bool) -> None:
        """Restarts, of learners that diverged or of all."""
        context, rows = self.context, self.group.matrix
        restarts = context.restarts
        if self.sync.follows(self.group.num_all) and not (restarts.gives_weights and outcome.any_diverged):
            rows.z.copy_(rows.weights[0])
        restarts.count(outcome, context.round_index)
        if outcome.any_diverged:
            restarts.restart(outcome.diverged)
        if due:
            restarts.after_drop()
        context.log.round_index += 1

    @torch.no_grad()
    def _rounds_ahead(self, batches: Sequence[Batches]) -> list[Outcome]:
        """Those of these rounds that can be run without a barrier between them; none unless several can."""
        runner = self.runner
        if len(batches) == 1 or not isinstance(runner, AheadRunner):
            return []
        batches = batches[: runner.num_ahead(batches)]
        if len(batches) < 2:
            return []
        context = self.context
        due = context.averaging.due(context.round_index + len(batches) - 1)
        context.restarts.observe_learning_rate()
        self.group.gather_buffers()  # for learners that diverge meanwhile
        with Uninterrupted():  # learners step as they go
            with out_of_memory_explained(len(self.group), self.group.device, self.settings.offload):
                outcomes = runner.learn_ahead(batches, due)
            for outcome in outcomes[:-1] if due else outcomes:
                context.restarts.count(outcome, context.round_index)
                context.log.round_index += 1
            if due:
                # All learning tasks have ended, and none of this round has stepped: every w_j is what it was before.
                context.averaging.begin(due)
                self._step(outcomes[-1], due)
                self._end_round(outcomes[-1], due)
        return outcomes


def step_learners(context: RoundContext, outcome: Outcome, due: bool) -> None:
    """Step learners with their gradients: averaged before, where the synchroniser does that, and clipped."""
    group, stepping = context.group, outcome.healthy
    if outcome.any_diverged:
        for learner, diverged in zip(group.learners, outcome.diverged, strict=True):
            if diverged:
                learner.gradient.zero_()
    if due:
        stepping = context.averaging.before_step(stepping)
    clip(group.matrix.gradients, context.settings.clip_norm)
    group.optimizer.step(stepping)


def step_row(context: RoundContext, learner: int) -> None:
    """Step one learner with its gradient."""
    clip(context.group.matrix.gradients[learner : learner + 1], context.settings.clip_norm)
    context.group.optimizer.step([j == learner for j in range(len(context.group))])


def step_alone(context: RoundContext, learner: int, finite: bool) -> bool:
    """Step one learner with its gradient while others learn; not for two threads at once.

    A learner that diverged starts again from `z`, which does not move meanwhile, with the buffers that the central
    model had when these rounds began: those of the others are being written to.
    """
    group = context.group
    if finite:
        step_row(context, learner)
        finite = bool(torch.isfinite(group.matrix.weights[learner].sum()))
    if not finite:
        context.restarts.restart([j == learner for j in range(len(group))], gather=False)
    return finite


def clip(gradients: Shaped[Tensor, "learners parameters"], limit: float | None) -> None:
    """Scale each learner's gradient to a norm of at most `limit`."""
    if limit is not None:
        gradients.mul_(clip_factors(gradients, limit))


def clip_factors(gradients: Shaped[Tensor, "learners parameters"], limit: float) -> Shaped[Tensor, "learners 1"]:
    """What scales each learner's gradient to a norm of at most `limit`."""
    norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    return torch.clamp(limit / (norms + 1e-6), max=1.0)
