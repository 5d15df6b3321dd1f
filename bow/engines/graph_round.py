"""Rounds of engine `graph` with certain batch shapes, as one native job.

Each learner's learning task is a copy of the step graph. Where optimizer and synchroniser allow it, the optimizer's
step and the synchronisation task come after all of them: every executor handles its columns, in one pass over the rows.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from bow.data import Batch, Batches, Indexed, Stacked, TensorSamples, batch_of
from bow.devices import available_cores, core_sets, share_cores
from bow.engines.batches import leaves_of, present, structure_of
from bow.engines.captured import CapturedTask, CapturedTasks, Shape, changed_buffers, shape_of
from bow.engines.context import RoundContext
from bow.engines.outcome import Outcome, Turns
from bow.engines.step_state import StepState
from bow.engines.task import losses_dtype
from bow.engines.task_scheduler import TaskScheduler
from bow.errors import ScheduleError, reason
from bow.graph import StepGraph
from bow.graph.execution import run_operators
from bow.replicas import LearnerGroup, buffer_slots
from bow.runtime.job import Affinity, GraphCopy, JobBuilder, Label
from bow.runtime.loading import NativeTeam, native
from bow.runtime.local import dependencies_of, named, operators_of, spans_of
from bow.schedule import OrderedSchedule, Schedule, Span


@dataclass(frozen=True)
class ExecutorGroups:
    """Division of executors between learners."""

    count: int
    threads: tuple[int, ...]  # by executor, group by group
    schedule: Schedule | None = None  # which executor of a group runs what; None: a group is one executor

    @classmethod
    def of(cls, learners: int, cores: int, threads: int, schedule: Schedule | None) -> "ExecutorGroups":
        """Return as many groups as learners, limited by the cores."""
        if schedule is None:
            count, each = share_cores(learners, cores, threads)
            return cls(count, (each,) * count)
        count = max(1, min(learners, cores // sum(schedule.threads)))
        return cls(count, schedule.threads * count, schedule)

    @property
    def width(self) -> int:
        return len(self.threads) // self.count

    @functools.cached_property
    def affinities(self) -> tuple[list[tuple[int, ...]], list[int]]:
        places = core_sets(list(self.threads))
        if self.schedule is None:
            return places, list(self.threads)
        assert isinstance(self.schedule, OrderedSchedule)  # the only kind in a training
        operators = len({index for own in self.schedule.order for index in own})
        found = [
            self.affinity(operators, places[group * self.width : (group + 1) * self.width])
            for group in range(self.count)
        ]
        return [cores for each in found for cores in each.cores], [number for each in found for number in each.threads]

    def affinity(self, operators: int, cores: Sequence[Sequence[int]] | None = None) -> Affinity:
        if self.schedule is None:
            return Affinity.of(Schedule.sequential(operators, self.threads[0]), operators, cores or [()])
        return Affinity.of(self.schedule, operators, cores or [()] * self.width)


class GraphRound:
    """Run the learning tasks of a round, of all learners or of one, for certain batch shapes."""

    def __init__(
        self,
        group: LearnerGroup,
        learners: Sequence[int],
        tasks: Sequence[CapturedTask],
        like: Sequence[Batch],
        groups: ExecutorGroups,
        step_state: StepState | None,
    ) -> None:
        self._group = group
        self._rows = slice(learners[0], learners[-1] + 1)
        self._structures = [structure_of(batch) for batch in like]
        self._executor: int | None = None
        self._step_state = step_state
        self._weights = group.matrix.weights[self._rows]
        self._moments = [] if step_state is None else [moment[self._rows] for moment in step_state.moments]
        self.groups = groups  # the executors it needs
        self._num_executors = len(groups.threads)
        self._builder = JobBuilder([task.graph for task in tasks], [task.region for task in tasks], learners)
        self._metrics = list(tasks[0].graph.metrics)
        self._results = [
            slot
            for program in self._builder.copies
            for slot in program.slots(sorted(program.graph.results - _given(program.graph)))
        ]
        self._active: list[bool] = []
        self.buffers: list[tuple[nn.Module, str, Tensor]] = []
        # Whether learning tasks draw random numbers and need seeds.
        self.is_random = any(op.is_random for task in tasks for op in task.graph.operators)
        self._build()

    @property
    def steps(self) -> bool:
        return self._step_state is not None

    @property
    def has_committed(self) -> bool:
        return bool(self._builder.job.has_committed)

    def feed(self, batches: Batches, seeds: Sequence[int]) -> bool:
        job = self._builder.job
        self.keep_buffers()
        if not self._fits(batches):
            return False
        self._active = present(batches, len(seeds))
        if isinstance(batches, Stacked):
            return bool(job.feed_stacked(leaves_of(batches.value), seeds))
        return bool(job.feed_each([None if batch is None else leaves_of(batch) for batch in batches], seeds))

    def takes(self, samples: TensorSamples) -> bool:
        """Whether batches of these samples have the structure of this job's; their shapes are checked as they run."""
        return self._structures.count(structure_of(samples.map(lambda leaf: leaf))) == len(self._structures)

    def begin(self, due: bool, total: Tensor | None = None) -> None:
        """Prepare the next run: current optimizer settings, and whether a synchronisation task is `due`."""
        if self._step_state is None:
            return
        matrix, state = self._group.matrix, self._step_state
        state.begin_round()
        steps = state.steps
        self._builder.job.set_rows(
            self._weights,
            self._moments,
            matrix.z,
            matrix.state.get("z_prev") if due else None,
            steps if len(steps) == 1 else steps[self._rows],
            state.counts[self._rows],
            *state.averaging,
            due,
            total,
        )

    def run(self, team: NativeTeam, record: bool = False, between: Callable[[], None] | None = None) -> Outcome:
        """Run on all executors and wait; `between` is called before results are committed."""
        job = self._builder.job
        try:
            job.run(team, record, commits=between is None)
            if between is not None:
                between()
                job.commit(team, record)
        except Exception as error:
            self._explain(error)
        return self._outcome()

    def post(self, team: NativeTeam, executor: int, record: bool = False) -> None:
        """Start on one idle executor and return at once; the job must need just one."""
        self._executor = executor
        self._builder.job.post(team, executor, record)

    def collect(self) -> Outcome:
        """Return the outcome, once the executor that it was posted to is idle."""
        self._raise_failure()
        return self._outcome()

    def _fits(self, batches: Batches) -> bool:
        if isinstance(batches, Stacked):
            return self._structures.count(structure_of(batches.value)) == len(self._structures)
        expected = zip(batches, self._structures, strict=True)
        return all(batch is None or structure_of(batch) == structure for batch, structure in expected)

    def feed_turns(self, turns: Indexed, seeds: Sequence[int], due: Sequence[bool], follows: bool = False) -> None:
        """Set the samples of learning tasks to run one after another `[turns, learners, batch]`."""
        self.keep_buffers()
        self.begin(due=any(due))
        self._active = [True] * len(self._structures)
        self._builder.job.feed_turns(turns.samples.leaves, turns.indices, seeds, due, self._results, follows)

    def collect_turns(self) -> Turns:
        self._raise_failure()
        losses, (finite,), turn_s, _ = self._builder.job.turns_outcome(losses_dtype(self._group.matrix.z))
        return Turns(losses[:, 0], finite, turn_s)

    def run_rounds(self, team: NativeTeam) -> list[Outcome]:
        """Run turns of all learners with a barrier after each, up to one that fails; `run` would raise its error."""
        job = self._builder.job
        job.run_turns(team)
        losses, stayed, _, metrics = job.turns_outcome(losses_dtype(self._group.matrix.z))
        finite, columns = torch.ones(len(stayed), dtype=torch.bool), metrics.unbind(2)
        by_round = [dict(zip(self._metrics, own, strict=True)) for own in zip(*columns, strict=True)]
        outcomes = [
            Outcome(own, finite, self._active, values)
            for own, values in zip(losses.unbind(), by_round or [{}] * len(losses), strict=True)
        ]
        for outcome in outcomes:
            outcome.healthy = self._active
        if outcomes and not all(stayed):
            outcomes[-1].mark_diverged(torch.tensor(stayed))
        return outcomes

    @staticmethod
    def take_turns(team: NativeTeam, rounds: Sequence["GraphRound"]) -> None:
        """Run each learner's turns on whichever executor is free, and wait for all."""
        team.take_turns([each._builder.job for each in rounds])

    def _outcome(self) -> Outcome:
        losses, finite, all_finite, metrics = self._builder.job.outcome(
            losses_dtype(self._group.matrix.z), len(self._metrics)
        )
        self._builder.job.release(self._results)
        by_name = {} if metrics is None else dict(zip(self._metrics, metrics, strict=True))
        outcome = Outcome(losses, finite, self._active, by_name)
        if all_finite:
            outcome.healthy = self._active  # computing it takes time in a tiny round
        return outcome

    def spans(self) -> list[Span]:
        return spans_of(self._builder, self._executor)

    def _raise_failure(self) -> None:
        try:
            self._builder.job.raise_failure()
        except Exception as error:
            self._explain(error)

    def _explain(self, error: Exception) -> NoReturn:
        node = self._builder.job.failed_node
        if node < 0:
            raise error
        program = self._builder.copy_of(node)
        if program is not None and self._builder.labels[node].category == "region":
            # A compiled region hides its operators: run them one by one to find the one that fails.
            job, graph = self._builder.job, program.graph
            with torch.no_grad():
                run_operators(graph, {value: job.value(program.slot(value)) for value in _given(graph)}, seed=0)
        raise named(error, node, self._builder) from error

    def keep_buffers(self) -> None:
        """Restore buffers that a round in `eager` has replaced by other tensors, and keep their values."""
        replaced = []
        for owner, key, bound in self.buffers:
            current = owner._buffers[key]
            if current is not bound and current is not None and current.shape == bound.shape:
                replaced.append((owner, key, bound, current.clone()))  # it may be what another buffer is bound to
        for owner, key, bound, value in replaced:
            bound.copy_(value)
            owner._buffers[key] = bound

    def _build(self) -> None:
        builder, group = self._builder, self._group
        firsts, finishes = [], []
        commit: list[list[int]] = [[] for _ in range(self._num_executors)]
        for program in builder.copies:
            module = group.learners[program.learner].module
            slots = [(name, *slot) for name, slot in buffer_slots(module)]
            buffers = {name: bound for name, owner, key in slots if (bound := owner._buffers[key]) is not None}
            self.buffers += [(owner, key, buffers[name]) for name, owner, key in slots if name in buffers]
            builder.bind(program, dict(module.named_parameters()), buffers)
            graph = program.graph
            like = [graph.values[value].empty("meta") for value in graph.batch.values()]
            builder.job.expect(program.group, program.slots(list(graph.batch.values())), like)
            firsts.append(builder.note(builder.job.add_gather(program.group), Label("batch", "batch", program.learner)))
            finishes.append(self._add_finish(program))
            commit[program.group % self._num_executors] += self._add_commit(program, buffers)
        for part in range(self._num_executors) if self._step_state is not None else ():
            node = builder.job.add_average(part, self._num_executors)
            commit[part].append(builder.note(node, Label("step and averaging", "synchronisation")))
        commit = commit if any(commit) else []
        order, after, threads = self._order(firsts, finishes)
        builder.job.schedule(
            order=order, priority=[], num_lanes=self._num_executors, commit=commit, after=after, threads=threads
        )

    def _order(
        self, firsts: Sequence[int], finishes: Sequence[int]
    ) -> tuple[list[list[int]], dict[int, list[int]], list[int]]:
        """Order the learning tasks on the executors of each group as the task scheduler assigns learners."""
        programs, groups = self._builder.copies, self.groups
        order: list[list[int]] = [[] for _ in range(self._num_executors)]
        after: dict[int, list[int]] = {}
        threads: list[int] = []
        scheduler = TaskScheduler(len(programs), groups.count)
        for run in scheduler.start([[True] * len(programs)], synchronises=False):
            nodes, first = programs[run.task.learner].nodes, run.place * groups.width
            affinity = groups.affinity(len(nodes))
            order[first].append(firsts[run.task.learner])
            for executor, operators in enumerate(affinity.order):
                order[first + executor] += [nodes[index] for index in operators]
            after |= {nodes[later]: [nodes[index] for index in waits] for later, waits in affinity.waits.items()}
            if affinity.operator_threads:
                threads = threads or [0] * len(self._builder.labels)
                for node, number in zip(nodes, affinity.operator_threads, strict=True):
                    threads[node] = number
            order[first].append(finishes[run.task.learner])
        return order, after, threads

    def _add_finish(self, program: GraphCopy) -> int:
        graph, layout = program.graph, self._group.layout
        gradient = self._group.matrix.gradient_of(program.learner)
        pieces = [
            (program.slot(graph.gradients[name]), slot.of(gradient), slot.offset)
            for slot in layout.slots
            for name in [next(name for name in slot.names if name in graph.gradients)]  # a tied parameter has several
        ]
        node = self._builder.job.add_finish(
            group=program.group,
            loss=program.slot(graph.loss),
            metrics=program.slots([graph.metrics[name] for name in self._metrics]),
            gradients=pieces,
            into_row=self._step_state is None,
        )
        return self._builder.note(node, Label("loss and gradient", "finish", program.learner))

    def _add_commit(self, program: GraphCopy, buffers: dict[str, Tensor]) -> list[int]:
        graph = program.graph
        changed = changed_buffers(graph)
        if not changed:
            return []
        targets = [(program.slot(graph.new_buffers[name]), buffers[name]) for name in changed]
        node = self._builder.job.add_commit(program.group, targets)
        return [self._builder.note(node, Label("buffers", "finish", program.learner))]


def _given(graph: StepGraph) -> set[int]:
    return {*graph.parameters.values(), *graph.buffers.values(), *graph.batch.values(), *graph.constants}


def _mode(step_state: StepState | None) -> tuple[Any, ...]:
    return torch.get_num_threads(), torch.is_autocast_enabled("cpu"), step_state is not None


MAX_JOBS = 16  # combinations of batch shapes to keep


class GraphJobs:
    """Cache of jobs, with a team of executors that fits them."""

    def __init__(self, context: RoundContext, tasks: CapturedTasks) -> None:
        self.team: NativeTeam = None
        self._context = context
        self._group = context.group
        self._tasks = tasks
        self._cores = len(available_cores())
        self._executors: ExecutorGroups | None = None  # those of the team
        self._served: ExecutorGroups | None = None  # those of the job that it was asked for last
        self._by_shapes: dict[tuple[Any, ...], GraphRound] = {}
        self._alone: dict[tuple[int, Shape, bool], GraphRound] = {}
        self._usual: dict[tuple[Any, ...], GraphRound] = {}  # by mode, what ran last

    def clear(self) -> None:
        self._by_shapes.clear()
        self._alone.clear()
        self._usual.clear()

    def drop_stale(self) -> bool:
        if not self._tasks.drop_if_changed():
            return False
        self.clear()
        return True

    @property
    def reshaped(self) -> str | None:
        """The name of a buffer that a round in `eager` has given another shape, so that no job can bind it."""
        slots = ((key, owner._buffers[key], bound) for job in self._usual.values() for owner, key, bound in job.buffers)
        return next((key for key, now, bound in slots if now is not None and now.shape != bound.shape), None)

    def close(self) -> None:
        if self.team is not None:
            self.team.close()

    def usual(self, step_state: StepState | None) -> GraphRound | None:
        """Return the job that ran last in this mode."""
        usual = self._usual.get(_mode(step_state))
        if usual is not None:
            self.team_of(usual.groups)
        return usual

    def ready(self, batches: Batches, step_state: StepState | None) -> GraphRound | None:
        """Return the job for these batches, already fed; None if they run one after another."""
        mode, usual = _mode(step_state), self.usual(step_state)
        if usual is None:
            for other in self._usual.values():
                other.keep_buffers()  # the job of this mode is to bind the same tensors
        if usual is None or not usual.feed(batches, self._seeds(usual)):
            usual = self._for(batches, step_state)
            if usual is None:
                return None
            fed = usual.feed(batches, self._seeds(usual))
            assert fed
            self._usual[mode] = usual
        return usual

    def alone(self, learner: int, batch: Batch, step_state: StepState | None) -> GraphRound:
        shape = shape_of(batch)
        key = (learner, shape, step_state is not None)
        if key not in self._alone:
            executor = ExecutorGroups(1, (1,))
            self._alone[key] = GraphRound(self._group, [learner], [self._tasks[shape]], [batch], executor, step_state)
        return self._alone[key]

    def one_executor_each(self) -> ExecutorGroups:
        """Return one executor per learner, limited by the cores."""
        return ExecutorGroups.of(len(self._group), self._cores, torch.get_num_threads(), schedule=None)

    def team_of(self, groups: ExecutorGroups) -> NativeTeam:
        """Return a team with these executors; without a schedule it has as many as the cores allow."""
        if groups is self._served:
            return self.team
        self._served = groups
        if groups.schedule is None:
            each = groups.threads[0]
            groups = ExecutorGroups(self._cores // each, (each,) * (self._cores // each))
        if self.team is None or groups != self._executors:
            self.close()
            self.team = native().Team(*groups.affinities)
            self._executors = groups
        return self.team

    def _seeds(self, job: GraphRound) -> list[int]:
        learners = range(len(self._group))
        return [self._context.task_seed(j) for j in learners] if job.is_random else [0] * len(learners)

    def _for(self, batches: Batches, step_state: StepState | None) -> GraphRound | None:
        dealt = [batch_of(batches, learner) for learner in range(len(self._group))]
        shapes = [None if batch is None else shape_of(batch) for batch in dealt]
        like = next((batch for batch in dealt if batch is not None), None)
        if like is None:
            return None
        threads, schedule = torch.get_num_threads(), self._context.settings.schedule
        groups = ExecutorGroups.of(len(self._group), self._cores, threads, schedule)
        key = (groups, step_state is not None, *(shape_of(like) if shape is None else shape for shape in shapes))
        if key not in self._by_shapes:
            tasks = self._tasks.by_learner(dealt, shapes, self._context.round_index)
            if tasks is None or any(task.graph.metrics.keys() != tasks[0].graph.metrics.keys() for task in tasks):
                return None
            if len(self._by_shapes) == MAX_JOBS:
                self._by_shapes.clear()
            if groups.schedule is not None and not self._fits(groups.schedule, tasks):
                groups = self.one_executor_each()
            examples = [like if batch is None else batch for batch in dealt]
            try:
                made = GraphRound(self._group, range(len(self._group)), tasks, examples, groups, step_state)
            except RuntimeError as error:  # an argument or a library that the runtime cannot take
                self._tasks.refused = reason(error)
                return None
            self._by_shapes[key] = made
        self.team_of(self._by_shapes[key].groups)
        return self._by_shapes[key]

    def _fits(self, schedule: Schedule, tasks: Sequence[CapturedTask]) -> bool:
        try:
            for task in tasks:
                schedule.check(dependencies_of(operators_of(task.graph)))
        except ScheduleError as error:
            why = f"the schedule does not fit this step ({reason(error)})"
            self._context.log.warn(f"{why}; operators run one after another")
            return False
        return True
