"""The round on a device with streams: who waits for whom."""

import abc
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeAlias, cast

import torch
from torch import Tensor, nn

from bow.devices import Event, Stream, StreamDevice, cuda_device, kernels_for
from bow.engines.base import Engine
from bow.engines.capture_cache import CaptureCache
from bow.engines.cuda.feed import Fed, Feed, Given
from bow.engines.cuda.learner import Made, StreamLearner
from bow.engines.cuda.results import LOSS, METRICS, SLOTS, Results
from bow.engines.cuda.rounds import Heard, Issued, UnderWay
from bow.engines.cuda.step import SgdStep
from bow.engines.eager import LearningTasks
from bow.engines.live_check import Expected, LiveCheck
from bow.engines.outcome import Batches, Outcome, Stacked, TaskSettings
from bow.engines.room import out_of_memory_explained
from bow.engines.sgd_state import fits
from bow.engines.swap import swapped_tasks
from bow.errors import BowError, CaptureError, reason
from bow.replicas import LearnerGroup
from bow.seeds import derive_seed
from bow.sync import EASGD, SMA, Synchroniser, Timing

ROUNDS_TOGETHER = 8
"""Rounds that are issued without a barrier between them, where nobody looks at the learners in between."""

ONE_OPTIMIZER = threading.Lock()
"""Held while one learner steps with the optimizer of all."""

Learn: TypeAlias = Callable[[StreamLearner, Given], Made]


class StreamEngine(Engine):
    """What the engines on devices with streams have in common.

    The host issues rounds and does not wait for them. Events alone order the streams:

    * A call begins behind what the caller's stream has been given, and what the caller issues next runs behind
      the call (`fork`, `_join`). Rounds within a call have no barrier of all streams between them.
    * Learner j's stream: its batch is there; learning task; step.
    * The synchronisation stream has a high priority. What a synchronisation task needs from before the step is
      computed there while the learners learn; behind their steps it moves the central model.
    * Of a round's results the host hears `SLOTS` rounds later, and learners that diverged then start again: always in
      the same round, so that a training is repeated exactly. Plain SGD with `SMA` sets weights back on the device at
      once.

    Args:
        group: the learners of the device.
        sync: what keeps them together.
        settings: what their learning tasks have in common.
        device: where they run; None: the GPU that their rows are on.
    """

    brings_batches = True
    replays: ClassVar[bool] = True
    """Whether what is captured runs without Python, so that it has to be held against the step now and then."""

    def __init__(
        self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings, device: StreamDevice | None = None
    ) -> None:
        super().__init__(group, sync, settings)
        self.device = cuda_device(group.device) if device is None else device
        self.kernels = kernels_for(self.device.torch_device)
        if self.kernels.reason is not None:
            self._note("kernels", f"PyTorch steps and averages, more slowly: {self.kernels.reason}")
        self.kernels.launch_once()
        self._warn_of_library_dropout()
        self.learners: list[StreamLearner] = []
        self._swapped = swapped_tasks(settings.memory, group, self.device, at_once=True)
        self._tasks = LearningTasks(group, settings, self._swapped)
        self.feed = Feed(self.device)
        self._results: Results | None = None
        self.under_way: deque[UnderWay] = deque()
        self._over = [self.device.event(f"round of slot {slot} is over") for slot in range(SLOTS)]
        self.sync_stream = self.device.stream("synchronisation", high_priority=True)
        self.issued = self.device.event("the caller has issued its work")
        self._advanced = self.device.event("learners and central model have been moved")
        self.gate: Event | None = None
        """What learners have to wait for before they learn; None: their own streams order it."""
        self.stepping: SgdStep | None = None
        """What steps on the learners' streams, if optimizer and synchroniser are of the kind."""
        self._captures: CaptureCache[None] = CaptureCache(settings.step, lambda: group.learners[0].module)
        self._live = LiveCheck(group, settings, self._captures)
        self._bind()

    # What differs between them

    @abc.abstractmethod
    def issue_learning(self, slot: int, fed: Fed, due: bool) -> None:
        """Issue the learning tasks of a round, and all the rest of it where there is `stepping`.

        Afterwards the synchronisation stream waits for all of it, and the results are in their slot.
        """

    def capture(self, given: Given) -> None:
        """Capture what there is to capture for batches of this shape, behind a `fork`; the host may wait."""

    # The round

    @property
    def period(self) -> int:
        """Rounds that can be issued at once."""
        return ROUNDS_TOGETHER if self.settings.dispatch == "fixed" else super().period

    def round(self, batches: Batches) -> Outcome:
        """Issue one round; the host does not wait for it."""
        return self.rounds([batches])[0]

    @torch.no_grad()
    def rounds(self, batches: Sequence[Batches]) -> list[Outcome]:
        """Issue some rounds without a barrier between them; the host does not wait for them."""
        if not batches:
            return []
        memory = out_of_memory_explained(len(self.group), self.device.torch_device, self.settings.memory)
        with self.device.issuing(), memory:
            try:
                results = self._prepared(batches)
                made = results.empty(len(batches))
                self.fork()
                issued = self.issue_call(batches, made)
            except BaseException:  # a learner that diverged, the user's mistake, Ctrl-C: not all may have been joined
                self.abandon()
                raise
            finally:
                self._join()
            return results.outcomes(made, [each.active for each in issued], [each.taken_by for each in issued])

    def abandon(self) -> None:
        """Wait for all that was issued of a call that ends in the middle: what it used is used again."""
        for stream in self.streams():
            over = self.device.event(f"{stream.name} was abandoned")
            stream.record(over)
            self.sync_stream.wait(over)
        self.sync_stream.record(self._advanced)
        self._advanced.synchronize()

    def streams(self) -> list[Stream]:
        """The streams that the synchronisation stream waits for."""
        return [self.feed.stream, *(learner.stream for learner in self.learners)]

    def issue_call(self, batches: Sequence[Batches], made: Tensor) -> list[Issued]:
        """Issue the rounds of a call."""
        return [self._issue(each, made[index]) for index, each in enumerate(batches)]

    @property
    def description(self) -> str:
        """Its name, and whether learning tasks cannot be captured."""
        return self.name if self._captures.refused is None else f"{self.name} (not captured)"

    @property
    def results(self) -> Results:
        """Where learning tasks put their results."""
        assert self._results is not None
        return self._results

    def learn(self, batches: Batches) -> Outcome:
        """Not a part of a round here."""
        raise NotImplementedError

    def _issue(self, batches: Batches, made: Tensor) -> Issued:
        """Issue one round."""
        slot = self.round_index % SLOTS
        while len(self.under_way) >= SLOTS:
            self.hear()
        due = self._due(self.round_index)
        self._observe_learning_rate()
        began = time.perf_counter_ns()
        expected = self._expected(batches) if self.check_is_due() else None
        fed = self.feed.put(slot, batches, len(self.group))
        active = fed.active
        stepping = self.stepping
        if stepping is None:
            with self.device.on(self.sync_stream):
                self._before_step(due)
        self.issue_learning(slot, fed, due)
        self.gate = None
        with self.device.on(self.sync_stream):
            difference = None if expected is None else self._difference(expected, slot)
            if stepping is None:
                self._step_all(slot, active, due)
            if self.sync.follows(self.num_learners):
                self.group.matrix.z.copy_(self.group.matrix.weights[0])
                self.followed()
            self._restart_on_drop(due)
            self.results.collect(slot, made)
        self.sync_stream.record(self._over[slot])
        self.under_way.append(UnderWay(self.round_index, slot, active, restarted=stepping is not None))
        self.round_index += 1
        self.record("issued", "round", began)
        if difference is not None:
            self._uncapture(difference)
        return Issued(active)

    # The captured task beside the step itself

    def check_is_due(self) -> bool:
        """Whether the coming round is to be held against the step, should it be replayed."""
        return self.replays and self._live.is_due(self.round_index)

    @property
    def draws_as_eager(self) -> bool:
        """Whether a learner's captured task draws the random numbers that it draws uncaptured."""
        return False

    def _expected(self, batches: Batches) -> Expected | None:
        """What the user's own step makes of one learner's batch; the host waits for all rounds first."""
        if isinstance(batches, Stacked):
            whole = Given.of(batches.value, stacked=True)
            dealt: list[Given | None] = [whole.of_learner(index) for index in range(len(self.group))]
        else:
            dealt = [None if batch is None else Given.of(batch) for batch in batches]
        index = self._live.choose([None if given is None else given.shape for given in dealt])
        given = None if index is None else dealt[index]
        if index is None or given is None:
            return None
        while self.under_way:
            self.hear()
        self._join()
        self.fork()
        learner = self.learners[index]
        seed = derive_seed(self.settings.seed, self.round_index, self.group.first + index)
        expected = learner.expect(self._live, given, self.issued, seed, self.draws_as_eager)
        learner.through.synchronize()  # what comes next is issued behind it
        return expected

    def _difference(self, expected: Expected, slot: int) -> str | None:
        """How a round that has been issued differs from the step; the host waits for its learning tasks."""
        row = self.results.rows_of_learners(slot)[expected.learner].clone()
        metrics = {name: row[METRICS + index] for index, name in enumerate(self.results.metrics)}
        made = self._live.run_of(expected.learner, row[LOSS], metrics)
        return self._live.verdict(made, expected, self.round_index)

    def _uncapture(self, why: str) -> None:
        """Replay nothing any more."""
        self.catch_up()
        self._captures.refused = why
        self._bind()
        self.fork()
        self._tell(f"{why}; running {self.description}")

    def _step_all(self, slot: int, active: list[bool], due: bool) -> None:
        """Optimizer and synchroniser in PyTorch, for all learners behind all of them."""
        outcome = self.results.outcome(self.results.rows(slot), active)
        # Who diverged, only the device knows by now: no step can be left out, but one without a gradient is harmless.
        self.group.matrix.gradients.masked_fill_(~outcome.finite.unsqueeze(1), 0)
        if self.sync.timing is not Timing.BEFORE_STEP:
            outcome.healthy = active  # else the host waits: a mean of gradients is that of the finite ones
        self._step(outcome, due)
        self.move()

    def _look_at_weights(self, outcome: Outcome) -> None:
        """Nobody looks: the host would wait. Infinite weights show in the next loss, or in the central model."""

    def contribute(self, contributors: int) -> None:
        """The synchroniser's sum: that of SMA in one pass over the rows."""
        matrix = self.group.matrix
        if self._averages_in_one_pass:
            assert isinstance(self.sync, SMA)
            alpha = 1 / self.num_learners if self.sync.alpha is None else self.sync.alpha
            self.kernels.sma_contribute(matrix.weights, matrix.z, matrix.corrections, matrix.total, alpha)
        else:
            super().contribute(contributors)

    def apply(self, contributors: int) -> None:
        """What the synchroniser does with the sum: SMA in one pass over the rows."""
        matrix = self.group.matrix
        if self._averages_in_one_pass:
            assert isinstance(self.sync, SMA)
            z_prev = matrix.state["z_prev"]
            self.kernels.sma_apply(matrix.weights, matrix.corrections, matrix.z, z_prev, matrix.total, self.sync.mu)
        else:
            super().apply(contributors)

    @property
    def _averages_in_one_pass(self) -> bool:
        sync = self.sync
        return isinstance(sync, SMA) and type(sync) in (SMA, EASGD) and not sync.is_in_levels(self.group.matrix)

    def followed(self) -> None:
        """The central model was made of the only learner's weights, which must not be written before that."""

    def _restart_on_drop(self, due: bool) -> None:
        if self.sync.restarts_on_drop and due and self.drop.take():
            self.sync.restart_all(self.group.matrix)
            self.move()
            self._note("restart", "the learning rate dropped: every learner starts again from the central model")

    def move(self) -> None:
        """Learners were moved on the synchronisation stream: they wait for it before they learn again."""
        self.sync_stream.record(self._advanced)
        self.gate = self._advanced

    # Before and behind a call

    def fork(self) -> None:
        """Have everything wait for what the caller has issued: batches, and whatever was done to the learners."""
        self.device.caller().wait(self._advanced)  # the last call may have been made from another stream
        if self.stepping is not None:
            self.stepping.begin()
        self.device.caller().record(self.issued)
        self.sync_stream.wait(self.issued)
        self.gate = self.issued

    def _join(self) -> None:
        """Have what the caller issues next wait for the rounds; the synchronisation stream has waited for all else."""
        self.sync_stream.record(self._advanced)
        self.device.caller().wait(self._advanced)

    # What the host hears later

    def hear(self) -> None:
        """Wait for the oldest round that is under way, and start learners again that diverged in it."""
        rounds = [self._heard()]
        if not rounds[0].healthy:
            # Whoever else has diverged by now must not be taken for healthy; and nobody is started again twice for one.
            rounds += [self._heard() for _ in range(len(self.under_way))]
        self.act_on(rounds)

    def _heard(self) -> Heard:
        over = self.under_way.popleft()
        self._over[over.slot].synchronize()
        return Heard.of(self.results.on_host(over.slot), Issued(over.active), over.round, over.restarted)

    def act_on(self, rounds: Sequence[Heard]) -> None:
        """Start learners again that diverged in any of these rounds, each once."""
        diverged: set[int] = set()
        restarted = all(each.restarted for each in rounds)
        for each in rounds:
            bad = each.diverged - diverged
            if not each.diverged:
                if any(each.issued.active):  # a round that all sit out says nothing
                    self._hopeless_rounds = 0
            elif bad or each.restarted:
                self._count_divergence(each.outcome(self.results), each.round)
            diverged |= bad
        if diverged:
            which = [learner in diverged for learner in range(len(self.group))]
            with self.device.on(self.sync_stream):
                self._restart(which, weights=not restarted)
            self.move()

    def _central_is_finite(self) -> bool:
        with self.device.on(self.sync_stream):
            return super()._central_is_finite()

    def catch_up(self) -> None:
        """Wait for all rounds, and hear what has come of them."""
        if not self.under_way:
            return
        with torch.no_grad(), self.device.issuing():
            while self.under_way:
                self.hear()
            self._join()

    def settle(self) -> None:
        """Make `z` what the training has reached; the device has ended all rounds by then."""
        self.catch_up()
        super().settle()

    def close(self) -> None:
        """Wait for the device, and give pinned memory back."""
        try:
            self.catch_up()
        finally:
            if self._swapped is not None:
                self._swapped.close()

    def resized(self) -> None:
        """Make streams and graphs for the learners that there are now."""
        self._bind()

    def _resize(self, change: Callable[[], None], undo: Callable[[], None] | None = None) -> None:
        self.catch_up()
        super()._resize(change, undo)

    # Learners side by side

    def issue_side_by_side(self, fed: Fed, rows: Sequence[Tensor], due: bool, learn: Learn) -> None:
        """Issue a round on the streams of the learners and the synchronisation stream, which comes last."""
        stepping = self.stepping
        if stepping is not None:
            with self.device.on(self.sync_stream):
                if due:
                    stepping.center()
            self.sync_stream.record(stepping.centered)
        made: list[Made | None] = [None] * len(self.learners)

        def issue(learner: StreamLearner) -> None:
            made[learner.index] = self._learn_one(learner, fed, rows, learn)

        self.for_each(issue)
        # No learner steps before all have issued their learning tasks: one that fails leaves all weights as they were.
        for learner, task in zip(self.learners, made, strict=True):
            if stepping is not None:
                self._step_one(stepping, learner, task, due)
            learner.stream.record(learner.through)
            self.sync_stream.wait(learner.through)
        if stepping is not None and due:
            with self.device.on(self.sync_stream):
                stepping.commit()

    def for_each(self, issue: Callable[[StreamLearner], None]) -> None:
        """Issue something for each learner."""
        for learner in self.learners:
            issue(learner)

    def learn_one(self, learner: StreamLearner, given: Given) -> Made:
        """Issue a learning task of the coming round on the current stream."""
        return learner.learn(given, (self.settings.seed, self.round_index, self.group.first + learner.index))

    def _learn_one(self, learner: StreamLearner, fed: Fed, rows: Sequence[Tensor], learn: Learn) -> Made | None:
        given, stream = fed.given[learner.index], learner.stream
        with self.device.on(stream):
            if self.gate is not None:
                stream.wait(self.gate)
            if given is None:
                self.group.learners[learner.index].gradient.zero_()
                rows[learner.index].fill_(torch.nan)
                return None
            if fed.copied is not None:
                stream.wait(fed.copied)
            made = learn(learner, given)
            self.results.check(made.metrics)
            rows[learner.index].copy_(made.results)
            return made

    def _step_one(self, stepping: SgdStep, learner: StreamLearner, made: Made | None, due: bool) -> None:
        with self.device.on(learner.stream):
            learner.stream.wait(stepping.centered)
            if made is not None:
                stepping.row(learner.index, made.finite, due)
            elif due:
                stepping.correct(learner.index)

    def step_on_stream(self, learner: StreamLearner, made: Made) -> None:
        """Step one learner alone on its stream, without averaging; the central model does not move meanwhile."""
        stepping = self.stepping
        if stepping is not None:
            stepping.row(learner.index, made.finite, synchronise=False)
            return
        gradient = self.group.matrix.gradients[learner.index : learner.index + 1]
        gradient.masked_fill_(~made.finite, 0)
        with ONE_OPTIMIZER:  # who steps takes the others' gradients away from it
            self._step_row(learner.index)

    # Shapes and captures

    def _bind(self) -> None:
        self._tasks.resized()
        self._live.resized()
        for learner in self.learners:
            learner.forget()
        self._captures.clear()
        self.learners = [
            StreamLearner(self.device, self.kernels, self.group, self._tasks, index) for index in range(len(self.group))
        ]
        fitting = fits(self.group, self.sync, self.settings)
        self.stepping = SgdStep(self.device, self.group, cast(SMA, self.sync), self.kernels) if fitting else None
        if self._results is not None:
            self._make_results(self._results.metrics)

    def _make_results(self, metrics: Sequence[str]) -> None:
        dtype = torch.promote_types(self.group.matrix.z.dtype, torch.float32)
        self._results = Results(self.device, len(self.group), metrics, dtype)

    def _prepared(self, batches: Sequence[Batches]) -> Results:
        """See to it that what these rounds need is there: graphs, and a place for results."""
        self._forget_stale()
        for index, each in enumerate(batches):
            for given in _different(each):
                self._get_ready(given, self.round_index + index)
        return self.results

    def _get_ready(self, given: Given, round_index: int) -> None:
        shape = given.shape
        if self._results is None:
            self.fork()  # learning tasks see what the caller has done to the learners
            self._make_results(self.learners[0].probe(given, self.issued))
        captures = self._captures
        if shape is None and captures.refused is None:
            captures.refused = "a batch holds something that is no dense tensor"
            self._tell_uncaptured("training")
        if shape is None or not captures.wants(shape, round_index):
            return
        self.catch_up()
        self.device.prepare_captures()
        try:
            captures.add(shape, lambda: self.capture(given))
        except (AssertionError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if isinstance(error, BowError) and not isinstance(error, CaptureError):
                raise
            captures.refuse(shape, error)
            if captures.refused is None:  # others of the training are captured: it is these batches
                self._tell(f"batches of another shape cannot be captured ({reason(error)}); they run uncaptured")
            else:
                self._tell_uncaptured("model")

    def _tell_uncaptured(self, what: str) -> None:
        why = self._captures.refused
        self._tell(f"engine {self.name} cannot capture this {what} ({why}); running {self.description}")

    def _forget_stale(self) -> None:
        """Drop graphs that are not those of this training any more: what steps is another, or a value in Python."""
        if (self.stepping is not None) != fits(self.group, self.sync, self.settings):  # a hook, a flag of the optimizer
            self.catch_up()
            self._bind()
        elif self._captures.forget_if_changed():
            self.catch_up()
            self._bind()
            if self._captures.refused is not None:
                self._tell(f"{self._captures.refused}; running {self.description}")

    def _warn_of_library_dropout(self) -> None:
        for name, module in self.group.template.named_modules():
            if isinstance(module, nn.RNNBase) and module.dropout and module.num_layers > 1:
                self._tell(
                    f"{name or type(module).__name__} drops between its layers by a state of cuDNN's that all learners "
                    "share: this training cannot be repeated exactly; use one layer each, and nn.Dropout between them"
                )
                return

    def _tell(self, message: str) -> None:
        self._note("engine changed", message)
        warnings.warn(message, stacklevel=7)


def _different(batches: Batches) -> Iterator[Given]:
    """A round's batches as they are, one of each kind as far as that is known at no cost."""
    if isinstance(batches, Stacked):
        yield Given.of(batches.value, stacked=True).of_learner(0)
        return
    for batch in batches:
        if batch is not None:
            yield Given.of(batch)
