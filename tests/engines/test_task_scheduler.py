import heapq
import itertools
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from bow.engines.task_scheduler import Dispatch, Learn, TaskScheduler, TaskStart

PERIODS = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5)).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes[0]),
        st.just(sizes[1]),
        st.lists(st.lists(st.booleans(), min_size=sizes[0], max_size=sizes[0]), min_size=sizes[2], max_size=sizes[2]),
        st.booleans(),
        st.lists(st.integers(1, 20), min_size=sizes[0], max_size=sizes[0]),
    )
)
"""Learners, places, rounds, whether the last one synchronises, and how long each learner's tasks take."""


@dataclass
class Machine:
    """Carries out instructions as a real one would: by place in order, after their events; times are made up."""

    scheduler: TaskScheduler
    seconds: list[int]
    starts: dict[Learn, int] = field(default_factory=dict)
    ends: dict[Learn, int] = field(default_factory=dict)
    place_of: dict[Learn, int] = field(default_factory=dict)

    def run(self, rounds: list[list[bool]], synchronises: bool) -> "Machine":
        self.free_at = dict.fromkeys(range(self.scheduler.places), max(self.ends.values(), default=0))
        self.events: list[tuple[int, int, Learn]] = []
        self.order = itertools.count()
        self._give(self.scheduler.start(rounds, synchronises), now=max(self.free_at.values()))
        while self.events:
            now, _, task = heapq.heappop(self.events)
            self._give(self.scheduler.finished(task), now)
        return self

    def _give(self, runs: list[TaskStart], now: int) -> None:
        for run in runs:
            start = max(now, self.free_at[run.place])
            self.starts[run.task] = start
            self.ends[run.task] = start + self.seconds[run.task.learner]
            self.place_of[run.task] = run.place
            self.free_at[run.place] = self.ends[run.task]
            heapq.heappush(self.events, (self.ends[run.task], next(self.order), run.task))

    def overlap(self, a: Learn, b: Learn) -> bool:
        return self.starts[a] < self.ends[b] and self.starts[b] < self.ends[a]


def batches_of(rounds: list[list[bool]]) -> list[int]:
    return [number for number, there in enumerate(itertools.chain(*rounds)) if there]


@given(PERIODS, st.sampled_from(["fixed", "first_come"]))
def test_every_batch_is_learned_once_and_nobody_does_two_things_at_once(period, dispatch: Dispatch) -> None:
    learners, places, rounds, synchronises, seconds = period
    machine = Machine(TaskScheduler(learners, places, dispatch), seconds).run(rounds, synchronises)
    assert sorted(task.batch for task in machine.starts) == batches_of(rounds)
    assert machine.scheduler.done
    for a, b in itertools.combinations(machine.starts, 2):
        if a.learner == b.learner or machine.place_of[a] == machine.place_of[b]:
            assert not machine.overlap(a, b)


@given(PERIODS)
def test_fixed_says_everything_at_once_in_the_order_of_learners_and_rounds(period) -> None:
    learners, places, rounds, synchronises, _ = period
    scheduler = TaskScheduler(learners, places)
    runs = scheduler.start(rounds, synchronises)
    reference = [(number % learners, number, number % learners % places) for number in batches_of(rounds)]
    tasks = [(run.task.learner, run.task.batch, run.place) for run in runs]
    assert tasks == reference
    assert scheduler.done == (not runs)
    assert not any(scheduler.finished(run.task) for run in reversed(runs))
    assert scheduler.done


@given(PERIODS)
def test_first_come_keeps_every_place_busy_while_there_is_something_to_take(period) -> None:
    learners, places, rounds, _, seconds = period
    machine = Machine(TaskScheduler(learners, places, "first_come"), seconds).run(rounds, synchronises=False)
    starts = sorted(machine.starts.values())
    for moment in starts:
        running = [t for t in machine.starts if machine.starts[t] <= moment < machine.ends[t]]
        waiting = [t for t in machine.starts if machine.starts[t] > moment]
        assert len(running) == min(learners, places) or not waiting


@given(PERIODS)
def test_in_the_round_that_is_averaged_every_learner_has_its_own_batch(period) -> None:
    learners, places, rounds, _, seconds = period
    machine = Machine(TaskScheduler(learners, places, "first_come"), seconds).run(rounds, synchronises=True)
    first = (len(rounds) - 1) * learners
    for task in machine.starts:
        if task.batch >= first:
            assert task.learner == task.batch - first
            assert all(machine.starts[other] <= machine.starts[task] for other in machine.starts
                       if other.learner == task.learner)  # fmt: skip


def test_a_slow_learner_gets_fewer_batches() -> None:
    rounds = [[True] * 3] * 9
    fixed, first_come = (
        Machine(TaskScheduler(3, 3, dispatch), seconds=[10, 10, 30]).run(rounds, synchronises=True)
        for dispatch in ("fixed", "first_come")
    )
    counts = [[task.learner for task in machine.starts].count(2) for machine in (fixed, first_come)]
    assert counts == [9, 5]
    assert max(first_come.ends.values()) < max(fixed.ends.values())


def test_a_learner_takes_its_last_batch_without_waiting_for_the_others() -> None:
    machine = Machine(TaskScheduler(2, 2, "first_come"), seconds=[10, 100]).run([[True] * 2] * 2, synchronises=True)
    assert machine.starts[Learn(0, 2)] < machine.ends[Learn(1, 1)]


def test_the_learner_that_has_been_free_for_longest_comes_first() -> None:
    scheduler = TaskScheduler(3, 1, "first_come")
    (run,) = scheduler.start([[True] * 3] * 2, synchronises=False)
    taken = [run.task]
    while not scheduler.done:
        taken.extend(run.task for run in scheduler.finished(taken[-1]))
    assert taken == [Learn(number % 3, number) for number in range(6)]


@given(PERIODS, st.sampled_from(["fixed", "first_come"]))
def test_a_period_follows_another(period, dispatch: Dispatch) -> None:
    learners, places, rounds, synchronises, seconds = period
    machine = Machine(TaskScheduler(learners, places, dispatch), seconds).run(rounds, synchronises)
    end = max(machine.ends.values(), default=0)
    again = Machine(machine.scheduler, seconds).run(rounds, synchronises)
    assert again.place_of == machine.place_of
    assert max(again.ends.values(), default=0) == end


def test_nothing_to_do_is_done() -> None:
    scheduler = TaskScheduler(2, 2, "first_come")
    assert scheduler.start([], synchronises=True) == []
    assert scheduler.done
