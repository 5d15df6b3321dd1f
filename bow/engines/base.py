"""How one round runs on one device, whatever the engine: learning tasks, step, synchronisation task, restarts."""

import abc
import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import torch
from jaxtyping import Shaped
from torch import Tensor

from bow.cluster import DONE, PendingSum
from bow.engines.outcome import Batches, Event, Outcome, TaskSettings
from bow.engines.room import out_of_memory_explained
from bow.errors import ClusterError, DivergenceError
from bow.replicas import LearnerGroup
from bow.schedule import Span
from bow.seeds import derive_seed
from bow.sync import DropRule, Synchroniser, Timing, TwoLevel

MAX_ROUNDS_TOGETHER = 64
"""Rounds that are handed to an engine at once, at most, so that not all batches of an epoch are in memory."""

HOPELESS_ROUNDS = 10
"""After this many rounds in a row in which every learner diverged, training ends with an error."""

REMEDY = 'lower the learning rate, look for NaN in the data, or go on with on_nan="continue"'


class Engine(abc.ABC):
    """Runs the rounds of one device.

    Args:
        group: the learners of the device.
        sync: what keeps them together.
        settings: what their learning tasks have in common.

    Warns:
        UserWarning: `dispatch="first_come"` for an engine whose learners keep step.
    """

    name: ClassVar[str]
    brings_batches: ClassVar[bool] = False
    """Whether it brings batches to its device itself, where learners do not compute on the host."""
    learners_run_ahead: ClassVar[bool] = False
    """Whether a learner can start on its next batch while others are still at theirs; needs `learn_ahead`."""

    def __init__(self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> None:
        self.group = group
        self.sync = sync
        self.settings = settings
        self._summing: PendingSum = DONE
        self.round_index = 0
        self.num_restarts = 0
        self.events: list[Event] = []
        self.spans: list[Span] | None = None
        """What ran when, since somebody put an empty list here; None: nothing is recorded."""
        self.drop = DropRule()
        self._hopeless_rounds = 0
        if settings.dispatch == "first_come" and not self.learners_run_ahead:
            warnings.warn(
                f'dispatch="first_come" has no effect in engine {self.name}, whose learners keep step; '
                'use engine="graph" or "streams", or leave it out',
                stacklevel=4,
            )
        self._near = group.world.near() if isinstance(sync, TwoLevel) else group.world
        self._check(group.by_device)
        sync.start(group.matrix)

    @property
    def num_learners(self) -> int:
        """Learners over all devices."""
        return self.group.num_all

    @property
    def round_seed(self) -> int:
        """Of the random numbers that this device's learners draw together in the coming round."""
        first = self.group.first
        return derive_seed(self.settings.seed, self.round_index, *([first] if first else []))

    @property
    def num_averaged(self) -> int:
        """How many learners average with this device's in every round: all of them, or those of its node."""
        group = self.group
        if not isinstance(self.sync, TwoLevel):
            return group.num_all
        return group.by_node(group.by_device)[group.world.node] if not group.is_alone else len(group)

    def _check(self, by_device: Sequence[int]) -> None:
        """Refuse numbers of learners by device with which averaging would be unstable, on any device."""
        averaged = [sum(by_device)]
        if isinstance(self.sync, TwoLevel):
            averaged = list(self.group.by_node(by_device).values())
        for learners in averaged:
            self.sync.check(learners, by_device)

    @property
    def description(self) -> str:
        """The name of what really runs, after any fallback."""
        return self.name

    @property
    def compile_s(self) -> float | None:
        """Seconds that compiling the learning task may take, 0 where it was done before; None: there is no choice."""
        return None

    @abc.abstractmethod
    def learn(self, batches: Batches) -> Outcome:
        """Run every learning task up to its gradient, which goes to the learner's row of `G`."""

    def resized(self) -> None:  # noqa: B027 - an engine that keeps nothing per learner has nothing to do
        """Learners were added or removed."""

    def catch_up(self) -> None:  # noqa: B027 - most engines have ended a round when `round` returns
        """Wait for rounds that are still under way, and act on what has come of them."""

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """End the engine's threads, if it has some; the next round starts them again."""

    @property
    def runs_ahead(self) -> bool:
        """Whether learners still can run ahead: not in an engine that has fallen back to learners that keep step."""
        return self.learners_run_ahead

    @property
    def period(self) -> int:
        """How many of the next rounds can be handed to `rounds` at once.

        Where learners take batches as they come, those up to and with the next synchronisation task; otherwise one.
        """
        if self.settings.dispatch == "fixed" or not self.runs_ahead or len(self.group) == 1:
            return 1
        ahead = range(1, MAX_ROUNDS_TOGETHER)
        return next((n for n in ahead if self._due(self.round_index + n - 1)), MAX_ROUNDS_TOGETHER)

    def rounds(self, batches: Sequence[Batches]) -> list[Outcome]:
        """Some rounds; with `dispatch="first_come"` there is no barrier between synchronisation tasks."""
        outcomes: list[Outcome] = []
        while left := batches[len(outcomes) :]:
            together = self.rounds_ahead(left) if min(self.period, len(left)) > 1 else 1
            outcomes += self._rounds_ahead(left[:together]) if together > 1 else [self.round(left[0])]
        return outcomes

    def rounds_ahead(self, batches: Sequence[Batches]) -> int:
        """How many of these rounds can be run as one."""
        return min(self.period, len(batches))

    def learn_ahead(self, batches: Sequence[Batches], due: bool) -> list[Outcome]:
        """Run the learning tasks of several rounds, each by the learner that is free first.

        Every task steps its learner with `step_alone`, except in the last round where that is `due` to synchronise:
        there each learner has its own batch, and its gradient is left in its row of `G`.
        """
        raise NotImplementedError

    def step_alone(self, learner: int, finite: bool) -> bool:
        """Step one learner with its gradient while others learn; not for two threads at once.

        A learner that diverged starts again from `z`, which does not move meanwhile, with the buffers that the central
        model had when these rounds began: those of the others are being written to.
        """
        if finite:
            self._step_row(learner)
            finite = bool(torch.isfinite(self.group.matrix.weights[learner].sum()))
        if not finite:
            self._restart([j == learner for j in range(len(self.group))], gather=False)
        return finite

    def _step_row(self, learner: int) -> None:
        self._clip(self.group.matrix.gradients[learner : learner + 1])
        self.group.optimizer.step([j == learner for j in range(len(self.group))])

    @torch.no_grad()
    def round(self, batches: Batches) -> Outcome:
        """One learning task of every learner and, when it is due, the synchronisation task."""
        due = self._due(self.round_index)
        self._observe_learning_rate()
        with out_of_memory_explained(len(self.group), self.group.device, self.settings.memory):
            outcome = self.learn_and_step(batches, due)
        self._end_round(outcome, due)
        return outcome

    def learn_and_step(self, batches: Batches, due: bool) -> Outcome:
        """Learning tasks, optimizer and, when it is `due`, the synchronisation task, in the order of its timing."""
        self._before_step(due)
        began = time.perf_counter_ns()
        with self._beside_the_sum():
            outcome = self.learn(batches)
        self.record("learning tasks", "round", began)
        began = time.perf_counter_ns()
        self._step(outcome, due)
        self.record("step and averaging" if due else "step", "round", began)
        return outcome

    @contextlib.contextmanager
    def _beside_the_sum(self) -> Iterator[None]:
        """Learn while a sum is under way: others have their part of it, and the next must not be taken for it."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(ClusterError):
                self._have_sum()
            raise

    def _have_sum(self) -> None:
        """Wait for the sum that is under way."""
        summing, self._summing = self._summing, DONE
        summing.wait()

    def record(self, name: str, category: str, began_ns: int, place: str = "caller", **details: str | float) -> None:
        """Remember what has run from `began_ns` until now, if somebody wants to know."""
        if self.spans is not None:
            details = {"round": self.round_index, **details}
            self.spans.append(Span(name, place, began_ns, time.perf_counter_ns(), category, details))

    @torch.no_grad()
    def _rounds_ahead(self, batches: Sequence[Batches]) -> list[Outcome]:
        due = self._due(self.round_index + len(batches) - 1)
        self._observe_learning_rate()
        self.group.gather_buffers()  # for learners that diverge meanwhile
        with out_of_memory_explained(len(self.group), self.group.device, self.settings.memory):
            outcomes = self.learn_ahead(batches, due)
        for outcome in outcomes[:-1] if due else outcomes:
            self._count_divergence(outcome, self.round_index)
            self.round_index += 1
        if due:
            # All learning tasks have ended, and none of this round has stepped: every w_j is what it was before.
            self._before_step(due)
            self._step(outcomes[-1], due)
            self._end_round(outcomes[-1], due)
        return outcomes

    def _due(self, round_index: int) -> bool:
        return self.sync.due(round_index, self.num_averaged)

    def _observe_learning_rate(self) -> None:
        self.drop.observe(float(self.group.optimizer.optimizer.param_groups[0]["lr"]))

    def _before_step(self, due: bool) -> None:
        """What a synchronisation task does with the weights before the step."""
        sync, rows, learners = self.sync, self.group.matrix, self.num_learners
        if due:
            sync.prepare(rows)
        if due and sync.timing is Timing.WITH_STEP:
            self.contribute(learners)
            self._summing = self._near.sum(rows.total)  # while the learners learn

    def _step(self, outcome: Outcome, due: bool) -> None:
        """The optimizer, and the rest of a synchronisation task."""
        sync, rows, learners = self.sync, self.group.matrix, self.num_learners
        stepping = outcome.healthy
        if outcome.any_diverged:
            self._clear_gradients(outcome)
        if due and sync.timing is Timing.BEFORE_STEP:
            contributors = self._contributed(sum(stepping))
            self.apply(contributors)
            stepping = [contributors > 0] * len(stepping)
        self._clip(rows.gradients)
        self.group.optimizer.step(stepping)
        self._look_at_weights(outcome)
        if due and sync.timing is Timing.AFTER_STEP:
            self._contributed(learners)
            self.apply(learners)
        if due and sync.timing is Timing.WITH_STEP:
            self._have_sum()
            self.apply(learners)
            self._average_nodes()

    def _look_at_weights(self, outcome: Outcome) -> None:
        """Learners whose step led out of the finite numbers start again before others average with them."""
        finite = torch.isfinite(self.group.matrix.weights.sum(1))
        if not bool(finite.all()):
            outcome.take_out(finite)
            self._restart(outcome.diverged)
            for learner, diverged in enumerate(outcome.diverged):
                if diverged:
                    self.sync.restarted(self.group.matrix, learner)

    def _average_nodes(self) -> None:
        """Average with other nodes, if that is due."""
        sync, world, rows = self.sync, self.group.world, self.group.matrix
        if isinstance(sync, TwoLevel) and sync.outer_due(self.round_index):
            sync.contribute_outer(rows, self.num_averaged, speaks=self._near.leads)
            world.sum(rows.total).wait()
            sync.apply_outer(rows, world.nodes)

    def _contributed(self, contributors: int) -> int:
        """Have the synchroniser's sum over all learners of all devices, and wait for it."""
        self.contribute(contributors)
        matrix, world = self.group.matrix, self.group.world
        if world.is_one:
            return contributors
        if self.sync.in_order:
            matrix.before = world.sums_before(matrix.total)
            return self.num_learners
        if self.sync.timing is not Timing.BEFORE_STEP:
            world.sum(matrix.total).wait()
            return self.num_learners
        matrix.travelling[-1] = contributors
        world.sum(matrix.travelling).wait()
        return int(matrix.travelling[-1])

    def contribute(self, contributors: int) -> None:
        """The synchroniser's sum over the learners of this device."""
        self.sync.contribute(self.group.matrix, self.num_averaged, contributors)

    def apply(self, contributors: int) -> None:
        """What the synchroniser does with the sum."""
        self.sync.apply(self.group.matrix, self.num_averaged, contributors)

    def _end_round(self, outcome: Outcome, due: bool) -> None:
        """Restarts, of learners that diverged or of all."""
        rows = self.group.matrix
        if self.sync.follows(self.num_learners) and not (self._restarts_weights and outcome.any_diverged):
            rows.z.copy_(rows.weights[0])
        self._count_divergence(outcome, self.round_index)
        if outcome.any_diverged:
            self._restart(outcome.diverged)
        if self.sync.restarts_on_drop and due and self.drop.take():
            self.sync.restart_all(rows)
            self._note("restart", "the learning rate dropped: every learner starts again from the central model")
        self.round_index += 1

    def _restart(self, diverged: Sequence[bool], weights: bool = True, gather: bool = True) -> None:
        """Start learners again that have left the finite numbers."""
        center = self.sync.center(self.group.matrix)
        self.group.restart(diverged, center, weights=weights and self._restarts_weights, gather=gather)

    def add_learner(self) -> None:
        """Add a learner that starts from `z`; the synchroniser must be stable with it.

        Where there are several devices, each of them adds one.
        """
        self.resize(len(self.group) + 1)

    def remove_learner(self) -> None:
        """Remove the last learner; where there are several devices, that of each."""
        self.resize(len(self.group) - 1)

    def resize(self, learners: int) -> None:
        """Have so many learners; new ones start from `z`, and the last ones go.

        Where there are several devices, all do this behind the same round, each with a number of its own.
        """
        wanted = self.group.world.everyone(learners)
        self._check(wanted)
        if any(more > now for more, now in zip(wanted, self.group.by_device, strict=True)):
            self.settle()
            self.sync.grow(self.group.matrix, self.num_averaged)
        failure: BaseException | None = None
        try:
            self._resize_own(learners)
        except BaseException as error:
            failure = error
        self.group.count()
        if failure is not None:
            raise failure

    def _resize_own(self, learners: int) -> None:
        while len(self.group) > learners:
            self._resize(self.group.remove)
        while len(self.group) < learners:
            self._resize(self._add, undo=self.group.remove)
            if self.sync.timing is Timing.BEFORE_STEP:  # equal gradients keep learners equal only from equal states
                self.group.optimizer.copy_state(source=0, target=len(self.group) - 1)

    def _add(self) -> None:
        self.group.add()
        rows = self.group.matrix
        rows.weights[len(self.group) - 1].copy_(self.sync.center(rows))

    def settle(self) -> None:
        """Make `z` what the training has reached, for synchronisers that do not move it as they go."""
        if self.sync.timing is Timing.NEVER:
            with torch.no_grad():
                self._contributed(self.num_learners)
                self.apply(self.num_learners)
        self.group.share_buffers()

    def _resize(self, change: Callable[[], None], undo: Callable[[], None] | None = None) -> None:
        followed = self.sync.follows(self.num_learners)
        change()
        if followed:  # z moved with the only learner: averaging starts here, at rest
            self.sync.start(self.group.matrix)
            self.drop.take()
        try:
            self.resized()
        except BaseException:  # there is no stream or no memory left for it
            if undo is not None:
                undo()
                self.resized()
            raise

    def _clip(self, gradients: Shaped[Tensor, "learners parameters"]) -> None:
        limit = self.settings.clip_norm
        if limit is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((limit / (norms + 1e-6)).clamp(max=1.0))

    def _clear_gradients(self, outcome: Outcome) -> None:
        for learner, diverged in zip(self.group.learners, outcome.diverged, strict=True):
            if diverged:
                learner.gradient.zero_()

    @property
    def _restarts_weights(self) -> bool:
        """Whether a learner that diverged gets new weights; where gradients are averaged, all have the same anyway."""
        return self.sync.timing is not Timing.BEFORE_STEP

    def _count_divergence(self, outcome: Outcome, round_index: int) -> None:
        """Tell of learners that diverged, or end the training where starting them again from `z` cannot help."""
        if not outcome.any_diverged:
            if any(outcome.active):  # a round that all sit out says nothing
                self._hopeless_rounds = 0
            return
        which = outcome.diverged.index(True)
        loss = float(outcome.losses[which])
        quantity = "gradient or weights were not finite" if math.isfinite(loss) else f"loss was {loss:g}"
        learner = which if outcome.taken_by is None else outcome.taken_by[which]
        cause = f"learner {self.group.first + learner}'s {quantity} in round {round_index}"
        if self.settings.on_nan == "error":
            raise DivergenceError(f'{cause}; lower the learning rate, or use on_nan="restart"')
        self._hopeless_rounds = 0 if any(outcome.healthy) else self._hopeless_rounds + 1
        if self.is_hopeless and self.group.is_alone:  # else other devices may have healthy ones
            raise DivergenceError(f"training diverged: {cause}, and so did every other; {REMEDY}")
        if not self._central_is_finite():
            raise DivergenceError(f"training diverged: {cause}, and with it the central model; lower the learning rate")
        what = "starts again from the central model" if self._restarts_weights else "is left out of the mean"
        message = f"{cause}: it {what}"
        if not self.num_restarts:
            warnings.warn(f"{message} (said once, then counted)", stacklevel=5)
        self.num_restarts += sum(outcome.diverged)
        self._note("learner restarted", message, round_index)

    @property
    def is_hopeless(self) -> bool:
        """Whether all learners of this device have diverged round after round."""
        return self.settings.on_nan != "continue" and self._hopeless_rounds >= HOPELESS_ROUNDS

    def _central_is_finite(self) -> bool:
        return bool(torch.isfinite(self.group.matrix.z).all())

    def _note(self, event: str, message: str, round_index: int | None = None) -> None:
        self.events.append(Event(self.round_index if round_index is None else round_index, event, message))
