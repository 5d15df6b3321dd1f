"""Native jobs of engine `graph`, one per combination of batch shapes, and the executors that run them."""

from collections.abc import Sequence
from typing import Any

import torch

from bow.devices import available_cores
from bow.engines.batches import Batch, Batches, batch_of
from bow.engines.captured import CapturedTask, CapturedTasks, Shape, shape_of
from bow.engines.context import RoundContext
from bow.engines.graph_round import ExecutorGroups, GraphRound
from bow.engines.step_state import StepState
from bow.errors import ScheduleError, reason
from bow.runtime.loading import NativeTeam, native
from bow.runtime.local import dependencies_of, operators_of
from bow.schedule import Schedule

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
        self._by_shapes: dict[tuple[Any, ...], GraphRound] = {}
        self._alone: dict[tuple[int, Shape, bool], GraphRound] = {}
        self._usual: GraphRound | None = None  # what ran last
        self._usual_mode: tuple[Any, ...] = ()

    def clear(self) -> None:
        self._by_shapes.clear()
        self._alone.clear()
        self._usual = None

    def drop_stale(self) -> bool:
        if not self._tasks.drop_if_changed():
            return False
        self.clear()
        return True

    def close(self) -> None:
        if self.team is not None:
            self.team.close()

    def ready(self, batches: Batches, step_state: StepState | None) -> GraphRound | None:
        """Return the job for these batches, already fed; None if they run one after another."""
        mode = (torch.get_num_threads(), torch.is_autocast_enabled("cpu"), step_state is not None)
        usual = self._usual
        if usual is None or self._usual_mode != mode or not usual.feed(batches, self._seeds(usual)):
            usual = self._for(batches, step_state)
            if usual is None:
                return None
            fed = usual.feed(batches, self._seeds(usual))
            assert fed
            self._usual, self._usual_mode = usual, mode
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
        groups = self._groups()
        key = (groups, step_state is not None, *(shape_of(like) if shape is None else shape for shape in shapes))
        if key not in self._by_shapes:
            tasks = self._tasks.by_learner(dealt, shapes, self._context.round_index)
            if tasks is None:
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

    def _groups(self) -> ExecutorGroups:
        schedule = self._context.settings.schedule
        return ExecutorGroups.of(len(self._group), self._cores, torch.get_num_threads(), schedule)

    def _fits(self, schedule: Schedule, tasks: Sequence[CapturedTask]) -> bool:
        try:
            for task in tasks:
                schedule.check(dependencies_of(operators_of(task.graph)))
        except ScheduleError as error:
            why = f"the schedule does not fit this step ({reason(error)})"
            self._context.log.warn(f"{why}; operators run one after another")
            return False
        return True
