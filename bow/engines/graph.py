"""Run learners in parallel on their own cores: step graphs on the native runtime."""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from bow.data import Batches, Indexed, Stacked, batch_of
from bow.devices import num_threads
from bow.engines.batches import gathered
from bow.engines.captured import MAX_SHAPES, CapturedTasks, Shape, shape_of
from bow.engines.context import RoundContext
from bow.engines.eager import Eager, SequentialTasks
from bow.engines.first_come import FinishedTask, Period, run_tasks
from bow.engines.graph_round import ExecutorGroups, GraphJobs, GraphRound
from bow.engines.live_check import LiveCheck
from bow.engines.loop import step_alone
from bow.engines.memory import out_of_memory_explained
from bow.engines.outcome import Outcome, ParallelSpeedup, Turns
from bow.engines.random import NumbersOfGraph
from bow.engines.runner import AheadRunner, InParts, SeedOf
from bow.engines.step_state import StepState, can_step
from bow.engines.task import Learned, out_of_range
from bow.engines.task_scheduler import Learn, TaskStart
from bow.errors import GraphError, RuntimeUnavailableError, reason
from bow.graph import StepGraph
from bow.graph.execution import lent_generator
from bow.runtime.loading import NativeTeam, native
from bow.sync import Members, is_plain_sma


class Graph(AheadRunner):
    """Run each learner's learning task as a step graph on its own executor, a thread pinned to cores."""

    # The task is one compiled region where compiling pays and the step allows it; otherwise it runs operator by
    # operator, bit for bit as in `eager` if it draws no random numbers. With plain SGD, Adam or AdamW the executors
    # step, too, except in rounds that average otherwise than by SMA, which is part of the same pass over the rows. With
    # a schedule every learner has a group of executors. Models that cannot be captured run in `eager`, and so do rounds
    # with rare batch shapes.

    name = "graph"
    gathers = True

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        group, settings = context.group, context.settings
        self._in_turn = SequentialTasks(group, settings.compiled(False))
        # A member's last, perhaps short batch runs in eager as it would alone, whatever shapes came before.
        most = 1 if isinstance(context.sync, Members) else MAX_SHAPES
        self.tasks = CapturedTasks(group, settings, context.log.warn, most)
        self.live = LiveCheck(group, settings, self.tasks)
        self._jobs = GraphJobs(context, self.tasks)
        self._failed: str | None = None  # why it runs in eager from now on
        self._alone_s: float | None = None  # of the task that a live check just ran alone
        self._running: GraphRound | None = None  # the job of this round
        self._in_one_pass = False  # whether the executors would have stepped, if there had been a job for this round
        self._step_state: StepState | None = None
        self._replayed: Batches | None = None  # the last batches that a capture ran on
        self.resized()
        try:
            native()
        except RuntimeUnavailableError as error:
            self._fall_back(f"engine graph is not available here ({reason(error)})")

    @property
    def description(self) -> str:
        if self._failed:
            return Eager.name
        return f"{self.name} (compiled)" if self.tasks.any_compiled else self.name

    @property
    def compilable(self) -> StepGraph | None:
        return None if self._failed else self.tasks.compilable

    @property
    def state(self) -> dict[str, Any]:
        return {"failed": self._failed, **self.tasks.state}

    def load(self, state: Mapping[str, Any]) -> None:
        self._jobs.clear()
        self.tasks.load(state)
        if (why := state["failed"]) and not self._failed:
            self._fall_back(f"engine graph had been abandoned before the checkpoint ({why})")
            self._failed = why

    def resized(self) -> None:
        self.context.log.parallel_speedup = None
        self._in_turn.resized()
        self.live.resized()
        self._replayed = None  # holds a batch for each of the previous learners
        self._jobs.clear()
        self._step_state = None  # has a row for each of the previous learners

    def close(self) -> None:
        self._jobs.close()

    def learn_and_step(self, batches: Batches, due: bool, in_parts: InParts) -> Outcome:
        self._running, stepping = None, self._stepping(due)
        self._in_one_pass = stepping is not None
        if stepping is None or (ready := self._ready(batches, stepping)) is None:
            return in_parts(batches, due)
        return self._run(ready, due) if self.group.is_alone or not due else self._run_with_sum(ready, stepping)

    @property
    def has_written(self) -> bool:
        return self._running is not None and self._running.has_committed

    def learn(self, batches: Batches) -> Outcome:
        ready = None if self._in_one_pass else self._ready(batches, None)
        if ready is None:
            self.context.snapshot.take()
            # Raises again if the error is the user's.
            outcome = self._in_turn.learn(batches, self.context.round_index)
            if self.tasks.refused is not None and not self._failed:
                self._fall_back(f"engine graph does not work for this model ({self.tasks.refused})")
            elif not self._failed and (name := self._jobs.reshaped) is not None:
                self._fall_back(f"the step changes the shape of buffer {name!r}")
            return outcome
        outcome = self._run(ready, due=False)
        for learner, active in zip(self.group.learners, outcome.active, strict=True):
            if not active:
                learner.gradient.zero_()
        return outcome

    @property
    def runs_ahead(self) -> bool:
        return not self._failed

    def num_ahead(self, batches: Sequence[Batches]) -> int:
        if self._failed or self._jobs.drop_stale() or self.live.is_due(self.context.round_index):
            return 1

        def is_captured(batches: Batches) -> bool:
            different = 1 if isinstance(batches, Stacked) else len(self.group)
            dealt = (batch_of(batches, learner) for learner in range(different))
            return all(shape_of(batch) in self.tasks for batch in dealt if batch is not None)

        return max(1, sum(1 for _ in itertools.takewhile(is_captured, batches)))

    def learn_ahead(self, batches: Sequence[Batches], due: bool) -> list[Outcome]:
        groups = self._jobs.one_executor_each()
        team = self._jobs.team_of(groups)
        self._replayed = batches[-1]
        period = Period(self.group, batches, ahead=len(batches) - due)
        scheduler, runs = period.start(groups.count, "first_come")

        def start(run: TaskStart) -> tuple[int, GraphRound]:
            task = run.task
            batch = period.batch(task)
            job = self._jobs.alone(task.learner, batch, self._stepping(due=False) if period.steps(task) else None)
            index, position = period.locate(task)
            fed = job.feed([batch], [self.context.task_seed(position, rounds_ahead=index)])
            assert fed
            job.begin(due=False)
            job.post(team, run.place, self.context.log.spans is not None)
            return run.place, job

        try:
            with _indices_are_data():
                run_tasks(scheduler, runs, start, functools.partial(self._finish_first, period))
        finally:
            team.drain()  # after Ctrl-C or a failure, executors may still be running
        return period.outcomes()

    @property
    def most_turns(self) -> int:
        context = self.context
        can_step = not self._failed and self._stepping(context.averaging.due(context.round_index)) is not None
        if not can_step or not self.group.is_alone or self._jobs.drop_stale():
            return 0
        return self.live.rounds_before(self.context.round_index)

    def turns(self, batches: Sequence[Indexed | None], seed_of: SeedOf) -> "ReadyTurns | None":
        first = [None if each is None else each.samples.gather(each.indices[0]) for each in batches]
        if any(batch is not None and shape_of(batch) not in self.tasks for batch in first):
            return None
        self._replayed = first
        jobs: list[GraphRound | None] = [None] * len(batches)
        for learner, (turns, batch) in enumerate(zip(batches, first, strict=True)):
            if turns is not None:
                jobs[learner] = job = self._jobs.alone(learner, batch, self._stepping(due=False))
                seeds = [seed_of(learner, turn) for turn in range(len(turns.indices))] if job.is_random else []
                job.feed_turns(Indexed(turns.samples, turns.indices.unsqueeze(1)), seeds, [False] * len(turns.indices))
        return ReadyTurns(self.context, self._jobs.team_of(self._jobs.one_executor_each()), jobs)

    def rounds(self, batches: Sequence[Indexed], due: Sequence[bool]) -> list[Outcome]:
        steps = {each: self._stepping(each) is not None for each in set(due)}
        due = list(itertools.takewhile(steps.__getitem__, due))
        batches = batches[: len(due)]
        job = self._jobs.usual(self._step_state) if len(due) > 1 else None
        if job is None or not job.takes(batches[0].samples):
            return []
        turns = Indexed(batches[0].samples, torch.stack([each.indices for each in batches]))
        seed, places = self.context.task_seed, itertools.product(range(len(batches)), range(len(self.group)))
        seeds = [seed(learner, ahead) for ahead, learner in places] if job.is_random else []
        job.feed_turns(turns, seeds, due, self.context.sync.follows(self.group.num_all))
        self._replayed = Stacked(batches[-1])
        return job.run_rounds(self._jobs.team)

    def _finish_first(self, period: Period, under_way: dict[Learn, tuple[int, GraphRound]]) -> Learn:
        """Wait for the first executor to finish; step the learner whose task it ran, if it steps alone."""
        by_executor = {executor: (task, running) for task, (executor, running) in under_way.items()}
        task, running = by_executor[int(self._jobs.team.wait_any(list(by_executor)))]
        outcome = running.collect()
        self._record(running)
        finite = bool(outcome.finite[0])
        if period.steps(task) and not (finite and running.steps):
            finite = step_alone(self.context, task.learner, finite)
        metrics = {name: value[0] for name, value in outcome.metrics.items()}
        period.take(task, FinishedTask(Learned(outcome.losses[0], metrics), finite))
        return task

    def _run(self, ready: GraphRound, due: bool) -> Outcome:
        ready.begin(due)
        began, alone_s, self._alone_s = time.perf_counter(), self._alone_s, None
        self._running = ready
        with _indices_are_data():
            outcome = ready.run(self._jobs.team, self.context.log.spans is not None)
        if alone_s is not None and all(outcome.active) and len(self.group) > 1:
            log = self.context.log
            log.parallel_speedup = log.parallel_speedup or ParallelSpeedup(len(self.group), ready.groups.count)
            log.parallel_speedup.times.append((alone_s, time.perf_counter() - began))
        self._record(ready)
        return outcome

    def _run_with_sum(self, ready: GraphRound, stepping: StepState) -> Outcome:
        matrix, averaging = self.group.matrix, self.context.averaging
        native().contribute(matrix.weights, matrix.z, matrix.total, stepping.averaging[0])
        ready.begin(True, matrix.total)
        self._running = ready
        averaging.begin_sum(matrix.total)
        with averaging.overlapping_sum(), _indices_are_data():
            outcome = ready.run(self._jobs.team, self.context.log.spans is not None, between=averaging.wait)
        self._record(ready)
        return outcome

    def _record(self, ran: GraphRound) -> None:
        if self.context.log.spans is not None:
            self.context.log.spans += ran.spans()

    def _ready(self, batches: Batches, stepping: StepState | None) -> GraphRound | None:
        """Return the job for these batches, already fed; None if they run one after another."""
        self._running = None
        if self._failed:
            return None
        self.tasks.refused = None
        self._jobs.drop_stale()
        job = self._jobs.ready(batches, stepping)
        while job is not None and not self._failed and self.live.is_due(self.context.round_index):
            difference, shape, is_sure = self._difference(batches)
            if (is_sure and not difference) or shape is None or not self.tasks.invalidate_disk_cache(shape):
                if difference:
                    self._fall_back(difference)
                break
            self._jobs.clear()  # another training's: it is captured anew
            job = self._jobs.ready(batches, stepping)
        job = None if self._failed else job
        self._replayed = batches if job is not None else self._replayed
        return job

    def check_last(self) -> None:
        for _ in range(2):  # the second is the closer look that the first may ask for
            if self._replayed is None or self._failed or self._jobs.drop_stale():
                return
            if not self.live.has_unchecked(self.context.round_index):
                return
            if difference := self._difference(gathered(self._replayed))[0]:
                self.context.log.warn(difference)

    def _difference(self, batches: Batches) -> tuple[str | None, Shape | None, bool]:
        """Live-check one learner's step graph: return the difference, the shape, and whether the result is certain."""
        dealt = [batch_of(batches, learner) for learner in range(len(self.group))]
        shapes = [None if batch is None else shape_of(batch) for batch in dealt]
        learner = self.live.choose(shapes)
        shape = None if learner is None else shapes[learner]
        if learner is None or shape is None:
            return None, None, True
        batch, task = dealt[learner], self.tasks[shape]
        seed = self.context.task_seed(learner)
        draws = [operator.index for operator in task.graph.operators if operator.is_random]

        @contextlib.contextmanager
        def numbers() -> Iterator[Callable[[], bool]]:
            with lent_generator(self.group.device), NumbersOfGraph(seed, draws) as drawn:
                yield lambda: drawn.num_draws == len(draws)

        made = []
        # Compiled code rounds differently: also run the capture operator by operator.
        for own in [task] if task.region is None else [task, dataclasses.replace(task, region=None)]:
            with self.live.undone(learner), _indices_are_data():
                running = GraphRound(self.group, [learner], [own], [batch], ExecutorGroups(1, (1,)), None)
                fed = running.feed([batch], [seed])
                assert fed
                began = time.perf_counter()
                outcome = running.run(self._jobs.team)
                if own is task:
                    self._alone_s = time.perf_counter() - began
                metrics = {name: value[0] for name, value in outcome.metrics.items()}
                compiled = own.region is not None
                made.append(self.live.results_of(learner, outcome.losses[0], metrics, is_compiled=compiled))
        with num_threads(1):  # as above: bitwise equal where nothing is compiled
            expected = self.live.run_step(learner, batch, numbers)
        difference = self.live.compare(made, expected, self.context.round_index)
        is_sure = not self.live.needs_recheck and expected.run is not None
        if is_sure and not difference:
            self.tasks.kept.trust(shape)
        return difference, shape, is_sure

    def _stepping(self, due: bool) -> StepState | None:
        """State for stepping on the executors, None if they cannot in such a round; hooks and flags may change that."""
        group, sync = self.group, self.context.sync
        if due and not (is_plain_sma(sync) and (group.is_alone or sync.levels == 1)):
            return None
        if group.matrix.z.dtype == torch.bfloat16 or not can_step(group, self.context.settings):
            return None
        self._step_state = self._step_state or StepState(group, sync)
        return self._step_state

    def _fall_back(self, why: str) -> None:
        self._failed, self.context.log.parallel_speedup = why, None
        self.context.log.warn(f"{why}; running {self.description}")


@dataclasses.dataclass(frozen=True)
class ReadyTurns:
    """Batches that are prepared to run, by learner, without waiting for other learners."""

    context: RoundContext
    team: NativeTeam
    jobs: Sequence[GraphRound | None]  # by learner

    def run_with(self, others: "Sequence[ReadyTurns]") -> None:
        several = (self, *others)
        GraphRound.take_turns(self.team, [job for each in several for job in each.jobs if job is not None])

    def collect(self) -> list[Turns | None]:
        group, offload = self.context.group, self.context.settings.engine.offload
        with out_of_memory_explained(len(group), group.device, offload), _indices_are_data():
            taken = [None if job is None else job.collect_turns() for job in self.jobs]
        self.context.log.round_index += max(len(each.losses) for each in taken if each is not None)
        return taken


@contextlib.contextmanager
def _indices_are_data() -> Iterator[None]:
    try:
        yield
    except GraphError as error:
        if isinstance(error.__cause__, IndexError):
            raise out_of_range(error) from error
        raise
