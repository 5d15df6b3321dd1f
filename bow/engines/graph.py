"""Learners that run at the same time on cores of their own: step graphs on the native runtime."""

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch

from bow.devices import available_cores
from bow.engines.base import Engine
from bow.engines.captured import CapturedTask, CapturedTasks, Shape, shape_of
from bow.engines.eager import Eager, InTurn, batch_of
from bow.engines.graph_ahead import Period
from bow.engines.graph_round import GraphRound
from bow.engines.lanes import Lanes
from bow.engines.live_check import LiveCheck
from bow.engines.outcome import Batches, Outcome, Stacked, TaskSettings
from bow.engines.place import num_threads
from bow.engines.random import NumbersOfGraph, task_random
from bow.engines.sgd_state import SgdState, fits
from bow.engines.task import Batch, out_of_range
from bow.errors import GraphError, RuntimeUnavailableError, ScheduleError, reason
from bow.replicas import LearnerGroup
from bow.runtime import NativeTeam, native
from bow.runtime.issue import operators_of
from bow.runtime.local import dependencies_of
from bow.schedule import Schedule
from bow.schedule.scheduler import Learn
from bow.seeds import derive_seed
from bow.sync import SMA, Synchroniser

MAX_ROUNDS = 16
"""Combinations of shapes of batches that are kept ready."""


class Graph(Engine):
    """Runs each learner's learning task as a step graph on its own executor, a thread that is pinned to cores.

    The learning task is one compiled region where compiling pays (`compile=True`, or a training that is known to be
    long) and the step allows it, and runs operator by operator otherwise, bit for bit as in `eager` where it draws no
    random numbers. Where the
    optimizer is plain SGD and the synchroniser is SMA, the executors step and average as well, in one pass over the
    rows. Models that cannot be captured run in `eager`, and so do rounds with batches of shapes that are rare.

    The number of executors is that of the learners, as far as there are cores; each has as many threads as
    `torch.get_num_threads()` gives it. With a schedule every learner has a team of executors, as far as there are
    cores, and its operators run side by side.
    """

    name = "graph"
    learners_run_ahead = True

    def __init__(self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> None:
        super().__init__(group, sync, settings)
        self._in_turn = InTurn(group, dataclasses.replace(settings, compile=False))
        self._tasks = CapturedTasks(group, settings, self._tell)
        self._live = LiveCheck(group, settings, self._tasks)
        self._rounds: dict[tuple[Any, ...], GraphRound] = {}
        self._alone: dict[tuple[int, Shape, bool], GraphRound] = {}
        self._usual: GraphRound | None = None  # what ran last
        self._usual_mode: tuple[Any, ...] = ()
        self._cores = len(available_cores())
        self._team: NativeTeam = None
        self._seated: Lanes | None = None
        self._failed = False
        self.resized()
        try:
            native()
        except RuntimeUnavailableError as error:
            self._fall_back(f"engine graph is not available here ({reason(error)})")

    @property
    def description(self) -> str:
        """`graph`, `graph (compiled)`, or `eager` after falling back."""
        if self._failed:
            return Eager.name
        return f"{self.name} (compiled)" if self._tasks.any_compiled else self.name

    @property
    def compile_s(self) -> float | None:
        """Behind the first round, what compiling the learning task may take."""
        return None if self._failed else self._tasks.compile_s

    def resized(self) -> None:
        """Build the jobs anew for the learners that there are now."""
        self._in_turn.resized()
        self._live.resized()
        self._forget_rounds()
        stepping = self._can_step() and self.group.matrix.z.dtype != torch.bfloat16
        self._sgd = SgdState(self.group, cast(SMA, self.sync)) if stepping else None

    def _forget_rounds(self) -> None:
        self._rounds.clear()
        self._alone.clear()
        self._usual = None

    def _forgot_stale(self) -> bool:
        """Forget what was captured if values in Python that it has frozen have changed, and say whether that was so."""
        if not self._tasks.forget_if_changed():
            return False
        self._forget_rounds()
        return True

    def close(self) -> None:
        """End the executors' threads; the next round starts them again."""
        if self._team is not None:
            self._team.close()

    def learn_and_step(self, batches: Batches, due: bool) -> Outcome:
        """Run the whole round on the executors where optimizer and synchroniser are of the kind that fits."""
        ready = self._fed(batches) if self._stepping is not None else None
        if ready is None:
            return super().learn_and_step(batches, due)
        return self._run(ready, due) if self.group.is_alone or not due else self._run_beside_the_sum(ready)

    def learn(self, batches: Batches) -> Outcome:
        """Run the learning tasks on the executors, or in turn where they have no step graph."""
        ready = self._fed(batches) if self._stepping is None else None
        if ready is None:
            outcome = self._in_turn.learn(batches, self.round_index)  # an error that comes here as well is the user's
            if self._tasks.refused is not None and not self._failed:
                self._fall_back(f"engine graph does not work for this model ({self._tasks.refused})")
            return outcome
        outcome = self._run(ready, due=False)
        for learner, active in zip(self.group.learners, outcome.active, strict=True):
            if not active:
                learner.gradient.zero_()
        return outcome

    @property
    def runs_ahead(self) -> bool:
        """Whether learners can run ahead of each other; not in `eager`."""
        return not self._failed

    def rounds_ahead(self, batches: Sequence[Batches]) -> int:
        """Rounds whose learning tasks have been captured."""
        together = batches[: super().rounds_ahead(batches)]
        if self._failed or self._forgot_stale() or self._live.is_due(self.round_index):
            return 1
        return max(1, sum(1 for _ in itertools.takewhile(self._is_captured, together)))

    def learn_ahead(self, batches: Sequence[Batches], due: bool) -> list[Outcome]:
        """Run the learning tasks of several rounds, each by the learner that is free first."""
        lanes = Lanes.of(len(self.group), self._cores, torch.get_num_threads(), schedule=None)
        self._seat(lanes)
        try:
            with _indices_are_data():
                return Period(self, batches, ahead=len(batches) - due).run(lanes.teams)
        finally:
            self._team.drain()  # after Ctrl-C or a failure, others may still be at work

    def start_task(self, task: Learn, batch: Batch, executor: int, steps: bool) -> GraphRound:
        """Have one learner run its learning task alone on an idle executor."""
        shape = shape_of(batch)
        sgd = self._stepping if steps else None
        key = (task.learner, shape, sgd is not None)
        if key not in self._alone:
            lane = Lanes(1, (1,))
            self._alone[key] = GraphRound(self.group, [task.learner], [self._tasks[shape]], [batch], lane, sgd)
        running = self._alone[key]
        index, position = divmod(task.batch, len(self.group))
        number = self.group.first + position
        fed = running.feed([batch], [derive_seed(self.settings.seed, self.round_index + index, number)])
        assert fed
        running.begin(due=False)
        running.post(self._team, executor, self.spans is not None)
        return running

    def finish_task(self, task: Learn, running: GraphRound, steps: bool) -> Outcome:
        """What has come of a learner's task, behind its step where it steps."""
        outcome = running.collect()
        if self.spans is not None:
            self.spans += running.spans()
        finite = bool(outcome.finite[0])
        if steps and not (finite and running.steps):
            outcome.finite[0] = self.step_alone(task.learner, finite)
        return outcome

    def wait_any(self, executors: Sequence[int]) -> int:
        """Wait until one of these executors is idle, and say which."""
        return int(self._team.wait_any(list(executors)))

    def _run(self, ready: GraphRound, due: bool) -> Outcome:
        ready.begin(due)
        with _indices_are_data():
            outcome = ready.run(self._team, self.spans is not None)
        if self.spans is not None:
            self.spans += ready.spans()
        return outcome

    def _run_beside_the_sum(self, ready: GraphRound) -> Outcome:
        """Run a round with a synchronisation task in which other devices take part."""
        matrix, sgd = self.group.matrix, cast(SgdState, self._sgd)
        native().contribute(matrix.weights, matrix.z, matrix.total, sgd.numbers().alpha)
        ready.begin(True, matrix.total)
        self._summing = self.group.world.sum(matrix.total)
        with self._beside_the_sum(), _indices_are_data():
            outcome = ready.run(self._team, self.spans is not None, between=self._have_sum)
        if self.spans is not None:
            self.spans += ready.spans()
        return outcome

    def _fed(self, batches: Batches) -> GraphRound | None:
        """What runs these batches, which it has been given; None where they are to be run in turn."""
        if self._failed:
            return None
        self._tasks.refused = None
        self._forgot_stale()
        mode = (self._lanes(), torch.is_autocast_enabled("cpu"), self._stepping is not None)
        usual = self._usual
        if usual is None or self._usual_mode != mode or not usual.feed(batches, self._seeds(usual)):
            usual = self._round_for(batches)
            if usual is None:
                return None
            fed = usual.feed(batches, self._seeds(usual))
            assert fed
            self._usual, self._usual_mode = usual, mode
        if self._live.is_due(self.round_index):
            self._compare(batches)
        return None if self._failed else usual

    def _compare(self, batches: Batches) -> None:
        """Hold one learner's step graph against the step; nothing of the training has changed behind it."""
        dealt = [batch_of(batches, learner) for learner in range(len(self.group))]
        shapes = [None if batch is None else shape_of(batch) for batch in dealt]
        learner = self._live.choose(shapes)
        if learner is None:
            return
        batch, task = dealt[learner], self._tasks[shapes[learner]]
        seed = derive_seed(self.settings.seed, self.round_index, self.group.first + learner)
        draws = [operator.index for operator in task.graph.operators if operator.is_random]

        @contextlib.contextmanager
        def numbers() -> Iterator[Callable[[], bool]]:
            with task_random(self.group.device), NumbersOfGraph(seed, draws) as drawn:
                yield lambda: drawn.num_draws == len(draws)

        with self._live.undone(learner), _indices_are_data():
            running = GraphRound(self.group, [learner], [task], [batch], Lanes(1, (1,)), None)
            fed = running.feed([batch], [seed])
            assert fed
            outcome = running.run(self._team)
            metrics = {name: value[0] for name, value in outcome.metrics.items()}
            made = self._live.run_of(learner, outcome.losses[0], metrics)
        with num_threads(1):  # as above, so that the two are equal bit for bit where nothing is compiled
            expected = self._live.expect(learner, batch, numbers)
        if difference := self._live.verdict(made, expected, self.round_index):
            self._fall_back(difference)

    @property
    def _stepping(self) -> SgdState | None:
        """What steps on the executors, if optimizer and synchroniser are of the kind; hooks and flags may change."""
        return self._sgd if self._sgd is not None and self._can_step() else None

    def _can_step(self) -> bool:
        return fits(self.group, self.sync, self.settings, sum_apart=True)

    def _is_captured(self, batches: Batches) -> bool:
        different = 1 if isinstance(batches, Stacked) else len(self.group)
        dealt = (batch_of(batches, learner) for learner in range(different))
        return all(shape_of(batch) in self._tasks for batch in dealt if batch is not None)

    def _seeds(self, ready: GraphRound) -> list[int]:
        if not ready.is_random:
            return [0] * len(self.group)
        learners = range(self.group.first, self.group.first + len(self.group))
        return [derive_seed(self.settings.seed, self.round_index, learner) for learner in learners]

    def _round_for(self, batches: Batches) -> GraphRound | None:
        """What runs batches of these shapes; None where they are to be run in turn."""
        dealt = [batch_of(batches, learner) for learner in range(len(self.group))]
        shapes = [None if batch is None else shape_of(batch) for batch in dealt]
        like = next((batch for batch in dealt if batch is not None), None)
        if like is None:
            return None
        lanes = self._lanes()
        key = (lanes, self._stepping is not None, *(shape_of(like) if shape is None else shape for shape in shapes))
        if key not in self._rounds:
            tasks = self._tasks.by_learner(dealt, shapes, self.round_index)
            if tasks is None:
                return None
            if len(self._rounds) == MAX_ROUNDS:
                self._rounds.clear()
            if lanes.schedule is not None and not all(self._is_fit(lanes.schedule, task) for task in tasks):
                lanes = Lanes.of(len(self.group), self._cores, torch.get_num_threads(), schedule=None)
            examples = [like if batch is None else batch for batch in dealt]
            learners = range(len(self.group))
            try:
                made = GraphRound(self.group, learners, tasks, examples, lanes, self._stepping)
            except RuntimeError as error:  # an argument or a library that the runtime cannot take
                self._tasks.refused = reason(error)
                return None
            self._rounds[key] = made
        self._seat(self._rounds[key].lanes)
        return self._rounds[key]

    def _lanes(self) -> Lanes:
        """The executors that work."""
        return Lanes.of(len(self.group), self._cores, torch.get_num_threads(), self.settings.schedule)

    def _is_fit(self, schedule: Schedule, task: CapturedTask) -> bool:
        """Whether a schedule is one of this learning task; the user is told once where it is not."""
        try:
            schedule.check(dependencies_of(operators_of(task.graph)))
        except ScheduleError as error:
            self._tell(f"the strategy does not fit ({reason(error)}); operators run one after another")
            return False
        return True

    def _seat(self, lanes: Lanes) -> None:
        """Have these executors, and as many more of the kind as there are cores for where learners have one each."""
        if lanes.schedule is None:
            each = lanes.threads[0]
            lanes = Lanes(self._cores // each, (each,) * (self._cores // each))
        if self._team is None or lanes != self._seated:
            self.close()
            self._team = native().Team(*lanes.seats)
            self._seated = lanes

    def _fall_back(self, why: str) -> None:
        self._failed = True
        self._tell(f"{why}; running {self.description}")

    def _tell(self, message: str) -> None:
        self._note("engine changed", message)
        warnings.warn(message, stacklevel=7)


@contextlib.contextmanager
def _indices_are_data() -> Iterator[None]:
    """What a user hears of an operator that failed: an index that is out of range is a matter of the data."""
    try:
        yield
    except GraphError as error:
        if isinstance(error.__cause__, IndexError):
            raise out_of_range(error) from error
        raise
