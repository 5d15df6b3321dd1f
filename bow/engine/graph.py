"""Learners that run at the same time on cores of their own: step graphs on the native runtime."""

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from bow.device import available_cores, core_sets
from bow.engine.base import Batches, Engine, Outcome, TaskSettings
from bow.engine.eager import Eager, InTurn, batch_of
from bow.engine.graph_round import CapturedTask, GraphRound, leaves_of
from bow.engine.sgd_state import SgdState, fits
from bow.engine.task import Batch, Step, autocast, out_of_range
from bow.errors import CaptureError, DataError, GraphError, RuntimeUnavailableError, reason
from bow.graph import StepGraph, capture
from bow.replica import LearnerGroup
from bow.runtime import NativeTeam, Region, compile_region, native
from bow.scheduler import Learn, TaskScheduler
from bow.seeds import derive_seed
from bow.sync import SMA, Synchroniser

MAX_SHAPES = 8
"""Batches of so many different shapes are captured, each when it comes for the second time; others run in `eager`."""

MAX_SEEN = 1000
"""So many shapes that came once are remembered."""

MAX_ROUNDS = 16
"""Combinations of such shapes that are kept ready."""

COMPILING_PAYS_S = 120
"""A learning task is compiled, which takes half a minute, when running it operator by operator would take so long in
all: by FLOPs and operators at the rates below, and not by the clock, so that the same training always runs alike."""

FLOPS_PER_S = 20e9
OPERATOR_S = 5e-6

Shape: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
"""Shape, strides and dtype of every tensor of a batch."""


class Graph(Engine):
    """Runs each learner's learning task as a step graph on its own executor, a thread that is pinned to cores.

    The learning task is one compiled region where compiling pays (`compile=True`, or a training that is known to be
    long) and the step allows it, and runs operator by operator otherwise, bit for bit as in `eager`. Where the
    optimizer is plain SGD and the synchroniser is SMA, the executors step and average as well, in one pass over the
    rows. Models that cannot be captured run in `eager`, and so do rounds with batches of shapes that are rare.

    The number of executors is that of the learners, as far as there are cores; each has as many threads as
    `torch.get_num_threads()` gives it.
    """

    name = "graph"
    device_types = ("cpu",)
    learners_run_ahead = True

    def __init__(self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> None:
        super().__init__(group, sync, settings)
        self._in_turn = InTurn(group, dataclasses.replace(settings, compile=False))
        self._captured_step = _with_autocast(settings.step, group.device, settings.precision)
        self._tasks: dict[Shape, CapturedTask] = {}
        self._seen: dict[Shape, int] = {}  # in which round first
        self._rounds: dict[tuple[Any, ...], GraphRound] = {}
        self._alone: dict[tuple[int, Shape, bool], GraphRound] = {}
        self._usual: GraphRound | None = None  # what ran last
        self._usual_lanes = (0, 0)
        self._cores = len(available_cores())
        self._team: NativeTeam = None
        self._team_threads = 0
        self._refusal: str | None = None
        self._failed = False
        self.resized()
        try:
            native()
        except RuntimeUnavailableError as error:
            self._fall_back(reason(error))

    @property
    def description(self) -> str:
        """`graph`, `graph (compiled)`, or `eager` after falling back."""
        if self._failed:
            return Eager.name
        return "graph (compiled)" if any(task.region for task in self._tasks.values()) else self.name

    def resized(self) -> None:
        """Build the jobs anew for the learners that there are now."""
        self._in_turn.resized()
        self._rounds.clear()
        self._alone.clear()
        self._usual = None
        stepping = fits(self.group, self.sync, self.settings) and self.group.matrix.z.dtype != torch.bfloat16
        self._sgd = SgdState(self.group, cast(SMA, self.sync)) if stepping else None

    def close(self) -> None:
        """End the executors' threads; the next round starts them again."""
        if self._team is not None:
            self._team.close()

    def learn_and_step(self, batches: Batches, due: bool) -> Outcome:
        """Run the whole round on the executors where optimizer and synchroniser are of the kind that fits."""
        if self._sgd is None:
            return super().learn_and_step(batches, due)
        ready = self._fed(batches)
        return super().learn_and_step(batches, due) if ready is None else self._run(ready, due)

    def learn(self, batches: Batches) -> Outcome:
        """Run the learning tasks on the executors, or in turn where they have no step graph."""
        ready = None if self._sgd is not None else self._fed(batches)
        if ready is None:
            outcome = self._in_turn.learn(batches, self.round_index)  # an error that comes here as well is the user's
            if self._refusal is not None and not self._failed:
                self._fall_back(self._refusal)
            return outcome
        outcome = self._run(ready, due=False)
        for learner, active in zip(self.group.learners, outcome.active, strict=True):
            if not active:
                learner.gradient.zero_()
        return outcome

    def rounds_ahead(self, batches: Sequence[Batches]) -> int:
        """Rounds whose learning tasks have been captured."""
        together = batches[: super().rounds_ahead(batches)]
        return sum(1 for _ in itertools.takewhile(lambda each: self._round_for(each) is not None, together))

    def learn_ahead(self, batches: Sequence[Batches], due: bool) -> list[Outcome]:
        """Run the learning tasks of several rounds, each by the learner that is free first."""
        period = _Period(self, batches, ahead=len(batches) - due)
        try:
            with _indices_are_data():
                return period.run(self._lanes()[0])
        finally:
            self._team.drain()  # after Ctrl-C or a failure, others may still be at work

    def start_task(self, learner: int, batch: Batch, seed: int, executor: int, steps: bool) -> GraphRound:
        """Have one learner run its learning task alone on an idle executor.

        Args:
            learner: whose.
            batch: on what; of a shape that has been captured.
            seed: of its random numbers.
            executor: where.
            steps: whether it steps behind it, if executors can; else its gradient goes to its row of `G`.
        """
        shape = _shape_of(leaves_of(batch))
        key = (learner, shape, steps)
        if key not in self._alone:
            sgd = self._sgd if steps else None
            self._alone[key] = GraphRound(self.group, [learner], [self._tasks[shape]], 1, sgd)
        task = self._alone[key]
        fed = task.feed([batch], [seed])
        assert fed
        task.begin(due=False)
        task.post(self._team, executor, self.spans is not None)
        return task

    def finish_task(self, task: GraphRound, learner: int, steps: bool) -> Outcome:
        """What has come of a learner's task, behind its step where it steps."""
        outcome = task.collect()
        if self.spans is not None:
            self.spans += task.spans()
        finite = bool(outcome.finite[0])
        if steps and not (finite and self._sgd is not None):
            self.step_alone(learner, finite)
        return outcome

    def wait_any(self, busy: Sequence[int]) -> int:
        """Wait until one of the executors that are busy is idle, and say which."""
        return int(self._team.wait_any(list(busy)))

    def _run(self, ready: GraphRound, due: bool) -> Outcome:
        ready.begin(due)
        with _indices_are_data():
            outcome = ready.run(self._team, self.spans is not None)
        if self.spans is not None:
            self.spans += ready.spans()
        return outcome

    def _fed(self, batches: Batches) -> GraphRound | None:
        """What runs these batches, which it has been given; None where they are to be run in turn."""
        if self._failed:
            return None
        usual = self._usual
        if usual is not None and self._usual_lanes == self._lanes() and usual.feed(batches, self._seeds(usual)):
            return usual
        found = self._round_for(batches)
        if found is not None:
            fed = found.feed(batches, self._seeds(found))
            assert fed
            self._usual, self._usual_lanes = found, self._lanes()
        return found

    def _seeds(self, ready: GraphRound) -> list[int]:
        learners = range(len(self.group))
        if not ready.is_random:
            return [0] * len(learners)
        return [derive_seed(self.settings.seed, self.round_index, learner) for learner in learners]

    def _round_for(self, batches: Batches) -> GraphRound | None:
        """What runs batches of these shapes; None where they are to be run in turn."""
        if self._failed:
            return None
        self._refusal = None
        dealt = [batch_of(batches, learner) for learner in range(len(self.group))]
        shapes = [None if batch is None else _shape_of(leaves_of(batch)) for batch in dealt]
        usual = next((shape for shape in shapes if shape is not None), None)
        if usual is None:
            return None
        lanes, threads = self._lanes()
        key = (lanes, *(shape or usual for shape in shapes))
        if key not in self._rounds:
            tasks = self._tasks_for(dealt, shapes)
            if tasks is None:
                return None
            if len(self._rounds) == MAX_ROUNDS:
                self._rounds.clear()
            self._rounds[key] = GraphRound(self.group, range(len(self.group)), tasks, lanes, self._sgd)
        self._seat(threads)
        return self._rounds[key]

    def _tasks_for(self, batches: Sequence[Batch | None], shapes: Sequence[Shape | None]) -> list[CapturedTask] | None:
        """By learner: its learning task; any other's where it has no batch."""
        tasks = [
            None if shape is None else self._task(shape, batch) for shape, batch in zip(shapes, batches, strict=True)
        ]
        missing = any(task is None and shape is not None for task, shape in zip(tasks, shapes, strict=True))
        usual = next((task for task in tasks if task is not None), None)
        if missing or usual is None:
            return None
        return [task or usual for task in tasks]

    def _task(self, shape: Shape, batch: Batch) -> CapturedTask | None:
        """The learning task for batches of a shape; None where it is not worth a graph, or cannot be one."""
        if shape in self._tasks:
            return self._tasks[shape]
        first = not self._tasks
        if len(self._seen) > MAX_SEEN:
            self._seen.clear()
        seen = self._seen.setdefault(shape, self.round_index) < self.round_index
        if not first and (not seen or len(self._tasks) == MAX_SHAPES):
            return None
        try:
            graph = capture(self.group.learners[0].module, batch, step=self._captured_step)
        except (CaptureError, DataError) as error:
            self._refusal = reason(error)
            return None
        self._tasks[shape] = CapturedTask(graph, self._region(graph) if first else None)
        return self._tasks[shape]

    def _region(self, graph: StepGraph) -> Region | None:
        if not (self.settings.compile or compiling_pays(graph, self.settings.rounds)):
            return None
        try:
            return compile_region(graph)
        except RuntimeUnavailableError as error:
            self._tell(f"the learning task is not compiled ({reason(error)}); it runs operator by operator")
            return None

    def _lanes(self) -> tuple[int, int]:
        """How many executors work, and with how many threads each."""
        lanes = min(len(self.group), self._cores)
        return lanes, max(1, min(torch.get_num_threads(), self._cores) // lanes)

    def _seat(self, threads: int) -> None:
        """Have executors with that many threads each, as many as there are cores for."""
        if self._team is None or threads != self._team_threads:
            self.close()
            executors = self._cores // threads
            self._team = native().Team(core_sets(executors, threads), [threads] * executors)
            self._team_threads = threads

    def _fall_back(self, why: str) -> None:
        self._failed = True
        self._tell(f"engine graph does not work for this model ({why}); running {self.description}")

    def _tell(self, message: str) -> None:
        self._note("engine changed", message)
        warnings.warn(message, stacklevel=7)


class _Period:
    """Rounds that learners run without a barrier, each taking the next batch when it is free.

    Args:
        engine: whose rounds they are.
        batches: by round.
        ahead: in so many of them, from the first on, learners step alone.
    """

    def __init__(self, engine: Graph, batches: Sequence[Batches], ahead: int) -> None:
        self._engine = engine
        self._batches = batches
        self._ahead = ahead
        self._learners = len(engine.group)
        self._done: list[list[Outcome | None]] = [[None] * self._learners for _ in batches]
        self._taken_by = [list(range(self._learners)) for _ in batches]
        self._running: dict[int, tuple[Learn, GraphRound]] = {}  # by executor

    def run(self, executors: int) -> list[Outcome]:
        """Run them all."""
        last = self._present(self._batches[-1])
        if self._ahead < len(self._batches):
            for learner, present in zip(self._engine.group.learners, last, strict=True):
                if not present:
                    learner.gradient.zero_()
        scheduler = TaskScheduler(self._learners, executors, "first_come")
        runs = scheduler.start([*map(self._present, self._batches)], synchronise=self._ahead < len(self._batches))
        while True:
            for run in runs:
                if isinstance(run.task, Learn):  # the synchronisation task is the engine's, behind all of this
                    self._running[run.place] = (run.task, self._start(run.task, run.place))
            if not self._running:
                return self._outcomes()
            task, job = self._running.pop(self._engine.wait_any(list(self._running)))
            self._finish(task, job)
            runs = scheduler.finished(task)

    def _start(self, task: Learn, executor: int) -> GraphRound:
        index, position = divmod(task.batch, self._learners)
        engine = self._engine
        seed = derive_seed(engine.settings.seed, engine.round_index + index, position)
        batch = batch_of(self._batches[index], position)
        return engine.start_task(task.learner, batch, seed, executor, steps=index < self._ahead)

    def _finish(self, task: Learn, job: GraphRound) -> None:
        index, position = divmod(task.batch, self._learners)
        self._done[index][position] = self._engine.finish_task(job, task.learner, steps=index < self._ahead)
        self._taken_by[index][position] = task.learner

    def _outcomes(self) -> list[Outcome]:
        joined = []
        for index, (done, taken_by) in enumerate(zip(self._done, self._taken_by, strict=True)):
            names = next((outcome.metrics.keys() for outcome in done if outcome is not None), ())
            dtype = self._engine.group.matrix.z.dtype
            losses = torch.stack([_NAN.to(dtype) if each is None else each.losses[0] for each in done])
            finite = torch.tensor([each is not None and bool(each.finite[0]) for each in done])
            metrics = {
                name: torch.stack([_NAN if each is None else each.metrics[name][0] for each in done]) for name in names
            }
            active = [each is not None for each in done]
            joined.append(Outcome(losses, finite, active, metrics, taken_by if index < self._ahead else None))
        return joined

    def _present(self, batches: Batches) -> list[bool]:
        return [batch_of(batches, learner) is not None for learner in range(self._learners)]


_NAN = torch.tensor(torch.nan)


@contextlib.contextmanager
def _indices_are_data() -> Iterator[None]:
    """What a user hears of an operator that failed: an index that is out of range is a matter of the data."""
    try:
        yield
    except GraphError as error:
        if isinstance(error.__cause__, IndexError):
            raise out_of_range(error) from error
        raise


def compiling_pays(graph: StepGraph, rounds: int | None) -> bool:
    """Whether compiling a learning task will have been worth its time.

    Args:
        graph: the learning task.
        rounds: how many the training has; None where that is unknown.
    """
    if rounds is None:
        return False
    seconds = graph.flops / FLOPS_PER_S + len(graph.operators) * OPERATOR_S
    return rounds * seconds >= COMPILING_PAYS_S


def _with_autocast(step: Step, device: torch.device, precision: str | None) -> Step:
    """A step that computes in the precision that was asked for, however it is captured."""
    if precision is None:
        return step

    def run(model: nn.Module, batch: Batch) -> Any:
        with autocast(device, precision):
            return step(model, batch)

    return run


def _shape_of(leaves: Sequence[Any]) -> Shape:
    return tuple((leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
