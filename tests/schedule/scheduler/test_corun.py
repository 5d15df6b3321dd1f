"""Operators beside each other: how many threads each has, what fits beside what, who is kept apart."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.manycore.simulator import simulate_operators
from bow.errors import ScheduleError
from bow.schedule import Timeline
from bow.schedule.scheduler import CacheTimes, CoRunScheduler, Start
from tests.schedule.scheduler.graphs import dependencies, listed, times
from tests.schedule.scheduler.watching import Event, Moment, Watched, check_carried_out

Times = list[dict[int, int]]


@st.composite
def cases(draw: st.DrawFn, least: int = 0) -> dict[str, Any]:
    """Arguments of a CoRunScheduler."""
    before = draw(dependencies(most=16))
    cores = draw(st.integers(1, 7))
    return {
        "dependencies": before,
        "times": draw(times(before, cores, least)),
        "kinds": draw(listed(st.sampled_from(["conv", "pool", "add"]), before)),
        "cores": cores,
    }


CASES = cases()


def run(scheduler: CoRunScheduler | Watched, predicted: Times, actual: list[int] | None = None) -> Timeline:
    """A step in simulated time, with the predicted times or with others."""
    return simulate_operators(
        scheduler,
        lambda start: predicted[start.operator][start.threads] if actual is None else actual[start.operator],
        siblings_factor=1.0 if actual is None else 1.5,
    )


class Rules:
    """What strategy 3 promises, and strategy 4, worked out anew at every decision and from every possibility."""

    def __init__(self, case: dict[str, Any], strategy: int, avoided: frozenset[tuple[str, str]] = frozenset()) -> None:
        self.moment = Moment(case["dependencies"])
        self.times, self.kinds, self.cores = case["times"], case["kinds"], case["cores"]
        self.strategy, self.avoided = strategy, avoided
        self.usual = usual_threads(case)
        self.ends: dict[int, int] = {}

    def check(self, event: Event) -> None:
        """Every start of an event is the one that the rules name, and behind the last they name none."""
        self.moment.hear(event.finished)
        for start in event.starts:
            assert (start.operator, start.threads, start.sibling) == self._expected(event.now_ns)
            self._check_cores(start)
            self.moment.carry_out(start)
            self.ends[start.operator] = event.now_ns + self.times[start.operator][start.threads]
        assert self._expected(event.now_ns) is None

    @property
    def holding(self) -> list[Start]:
        return [start for start in self.moment.running.values() if not start.sibling]

    def _check_cores(self, start: Start) -> None:
        taken = {
            core for other in self.moment.running.values() for core in other.cores if other.sibling == start.sibling
        }
        assert not taken.intersection(start.cores)
        assert len(set(start.cores)) == len(start.cores) == start.threads
        assert set(start.cores) <= set(range(self.cores))
        assert start.executor == min(start.cores) + (self.cores if start.sibling else 0)

    def _expected(self, now: int) -> tuple[int, int, bool] | None:
        calm = [each for each in self.moment.ready if not self._interferes(each)]
        idle = self.cores - sum(start.threads for start in self.holding)
        until = max((self.ends[start.operator] for start in self.holding), default=-1)
        for operator in calm:
            if idle and self.holding and (threads := self._fitting(operator, idle, until - now)):
                return operator, threads, False
        if idle and calm:
            return self._longest(calm, idle)
        full = len(self.holding) == 1 and not idle
        if self.strategy == 4 and full and calm and len(self.moment.running) <= self.cores:
            operator = min(calm, key=lambda each: (self.times[each][1], self.moment.ready.index(each)))
            if now + self.times[operator][1] <= until:
                return operator, 1, True
        return None

    def _fitting(self, operator: int, idle: int, left: int) -> int | None:
        own, usual = self.times[operator], self.usual[operator]
        fits = {threads for threads in range(1, idle + 1) if own[threads] <= left}
        threads = min(fits.intersection(fastest(own)), default=None)
        if threads is None or abs(threads - usual) <= 2:
            return threads
        return usual if usual in fits else None

    def _longest(self, calm: list[int], idle: int) -> tuple[int, int, bool] | None:
        slowest = max(self.times[each][self.usual[each]] for each in calm)
        operator = next(each for each in calm if self.times[each][self.usual[each]] == slowest)
        usual, own = self.usual[operator], self.times[operator]
        if usual <= idle:
            return operator, usual, False
        near = [threads for threads in fastest(own) if threads <= idle and usual - threads <= 2]
        return (operator, near[0], False) if near else None

    def _interferes(self, operator: int) -> bool:
        others = {self.kinds[each] for each in self.moment.running}
        return any(tuple(sorted([self.kinds[operator], other])) in self.avoided for other in others)


def fastest(own: dict[int, int]) -> list[int]:
    return sorted(own, key=lambda threads: (own[threads], threads))[:3]


def usual_threads(case: dict[str, Any]) -> list[int]:
    """Strategy 2, by operator."""
    least = [min(own.values()) for own in case["times"]]
    numbers = {}
    for kind in set(case["kinds"]):
        alike = [index for index, each in enumerate(case["kinds"]) if each == kind]
        largest = max(alike, key=lambda index: (least[index], -index))
        numbers[kind] = fastest(case["times"][largest])[0]
    return [numbers[kind] for kind in case["kinds"]]


@given(CASES, st.data(), st.sampled_from([1, 2, 3, 4]), st.booleans())
def test_every_strategy_gives_a_schedule_that_can_be_carried_out(
    case: dict[str, Any], data: st.DataObject, strategy: Any, narrow: bool
) -> None:
    arguments = {**case, "strategy": strategy, "narrow": narrow}
    actual = data.draw(st.none() | listed(st.integers(0, 30), case["dependencies"]))
    scheduler = CoRunScheduler(**arguments)
    timeline = run(scheduler, case["times"], actual)
    check_carried_out(timeline, case["dependencies"])
    assert run(scheduler, case["times"], actual) == timeline == run(CoRunScheduler(**arguments), case["times"], actual)


@given(CASES, st.sampled_from([1, 2]))
def test_strategies_1_and_2_run_one_after_another_as_operators_became_ready(
    case: dict[str, Any], strategy: Any
) -> None:
    watched = Watched(CoRunScheduler(**case, strategy=strategy))
    run(watched, case["times"])
    moment, usual = Moment(case["dependencies"]), usual_threads(case)
    for event in watched.events:
        moment.hear(event.finished)
        (start,) = event.starts or [None]
        if start is None:
            assert not moment.ready
            continue
        threads = fastest(case["times"][start.operator])[0] if strategy == 1 else usual[start.operator]
        assert start == Start(moment.ready[0], 0, threads, tuple(range(threads)))
        moment.carry_out(start)


@given(CASES, st.data(), st.sampled_from([3, 4]))
def test_strategies_3_and_4_start_what_fits_and_else_what_takes_longest(
    case: dict[str, Any], data: st.DataObject, strategy: Any
) -> None:
    actual = data.draw(st.none() | listed(st.integers(0, 30), case["dependencies"]))
    watched = Watched(CoRunScheduler(**case, strategy=strategy))
    run(watched, case["times"], actual)
    rules = Rules(case, strategy)
    for event in watched.events:
        rules.check(event)


@given(CASES)
def test_nothing_outlasts_what_runs_unless_it_takes_longest_of_all(case: dict[str, Any]) -> None:
    watched = Watched(CoRunScheduler(**case, strategy=3))
    run(watched, case["times"])
    moment, usual, ends = Moment(case["dependencies"]), usual_threads(case), dict[int, int]()
    for event in watched.events:
        moment.hear(event.finished)
        for start in event.starts:
            own = case["times"][start.operator]
            until = max((ends[each] for each in moment.running), default=-1)
            ends[start.operator] = event.now_ns + own[start.threads]
            if ends[start.operator] > until:
                assert all(own[usual[start.operator]] >= case["times"][each][usual[each]] for each in moment.ready)
            # Strategy 2 holds: the number of its type, or one of its three best that is not far from that.
            assert start.threads == usual[start.operator] or (
                start.threads in fastest(own) and abs(start.threads - usual[start.operator]) <= 2
            )
            moment.carry_out(start)


@given(CASES, st.data(), st.sampled_from([1, 2, 3, 4]), st.booleans())
def test_threads_that_share_caches_or_not_still_give_a_schedule_that_can_be_carried_out(
    case: dict[str, Any], data: st.DataObject, strategy: Any, narrow: bool
) -> None:
    cores, before = case["cores"], case["dependencies"]
    caches = data.draw(st.lists(st.integers(0, 3), min_size=cores, max_size=cores))
    by_cache = CacheTimes(case["times"], data.draw(times(before, cores, 0)), caches)
    scheduler = CoRunScheduler(**{**case, "times": by_cache}, strategy=strategy, narrow=narrow)
    timeline = simulate_operators(scheduler, lambda start: by_cache.ns(start.operator, start.cores))
    check_carried_out(timeline, before)


@given(CASES, st.sampled_from([1, 2, 3, 4]), st.booleans())
def test_caches_that_no_cores_share_change_nothing(case: dict[str, Any], strategy: Any, narrow: bool) -> None:
    arguments = {**case, "strategy": strategy, "narrow": narrow}
    own = CacheTimes(case["times"], case["times"], range(case["cores"]))
    with_caches = run(CoRunScheduler(**{**arguments, "times": own}), case["times"])
    assert with_caches == run(CoRunScheduler(**arguments), case["times"])


TILES = (0, 0, 1, 1, 2, 2)
"""Six cores, of which every two share a cache."""


@pytest.mark.parametrize(
    ("together", "apart", "cores"),
    [(5, 9, (0, 1)), (9, 5, (0, 2)), (5, 5, (0, 2))],
    ids=["sharing is faster", "not sharing is faster", "all the same"],
)
def test_threads_sit_where_an_operator_is_faster(together: int, apart: int, cores: tuple[int, ...]) -> None:
    predicted = CacheTimes([{2: together}], [{1: 20, 2: apart}], TILES)
    for strategy in (1, 3):
        (start,) = CoRunScheduler([[]], predicted, ["conv"], 6, strategy).start()  # type: ignore[arg-type]
        assert start.cores == cores


@pytest.mark.parametrize(("left", "second"), [(9, 1), (8, 2)])
def test_what_fits_is_decided_by_the_time_on_the_cores_that_are_idle(left: int, second: int) -> None:
    # Four of six cores are held: two threads share the last cache, and take 9 there, not the 5 of two caches.
    predicted = CacheTimes([{4: left}, {2: 9}, {2: 7}], [{4: 99}, {2: 5}, {2: 7}], TILES)
    starts = CoRunScheduler([[], [], []], predicted, ["conv", "pool", "add"], cores=6).start()
    assert [(start.operator, start.cores) for start in starts] == [(0, (0, 1, 2, 3)), (second, (4, 5))]


def test_one_thread_leaves_whole_caches_to_others() -> None:
    predicted = CacheTimes([{}, {}, {2: 5}], [{1: 9}, {1: 8}, {2: 6}], TILES)
    starts = CoRunScheduler([[], [], []], predicted, ["a", "b", "c"], cores=6).start()
    assert [start.cores for start in starts] == [(0,), (1,), (2, 3)]


def test_every_core_needs_a_cache() -> None:
    with pytest.raises(ScheduleError, match="2 caches for 6 cores; name the cache of every core"):
        CoRunScheduler([[]], CacheTimes([{1: 1}], [{}], (0, 0)), ["a"], cores=6)
    with pytest.raises(ScheduleError, match="1 separate times for 2 operators"):
        CacheTimes([{1: 1}] * 2, [{}], (0, 0))


def test_the_example_of_the_paper() -> None:
    # 1.9 s are left on 48 of 68 cores; 16 threads take longer, and 18 leave more room than 20.
    predicted = [{48: 1900}, {16: 2100, 18: 1500, 20: 1300}]
    starts = CoRunScheduler([[], []], predicted, kinds=["conv", "pool"], cores=68).start()
    assert [(start.operator, start.threads) for start in starts] == [(0, 48), (1, 18)]
    assert starts[1].cores == tuple(range(48, 66))


def test_what_runs_is_given_the_time_that_is_left_by_the_clock() -> None:
    # 2 takes 40 where 1 has ended; 0 has 100 - 50 left then, or nothing if it should have ended.
    predicted = [{2: 100}, {1: 20}, {1: 40}, {3: 100}]
    for now_ns, expected in ((50, [(2, 1)]), (60, [(2, 1)]), (61, []), (120, [])):
        scheduler = CoRunScheduler([[], [], [1], [1]], predicted, kinds=["a", "b", "c", "d"], cores=3)
        assert [(start.operator, start.threads) for start in scheduler.start(now_ns=0)] == [(0, 2), (1, 1)]
        assert [(start.operator, start.threads) for start in scheduler.finished(1, now_ns=now_ns)] == expected


def test_far_from_the_number_of_its_type_an_operator_takes_that() -> None:
    # conv is best with 8; beside operator 0, conv 2 would do with 4.
    predicted = [{8: 100}, {8: 90}, {4: 50, 8: 60}]
    kinds = ["pool", "conv", "conv"]
    scheduler = CoRunScheduler([[], [], []], predicted, kinds, cores=24)
    assert [(start.operator, start.threads) for start in scheduler.start()] == [(0, 8), (1, 8), (2, 8)]
    scheduler = CoRunScheduler([[], [], []], predicted, kinds, cores=23)
    assert [(start.operator, start.threads) for start in scheduler.start()] == [(0, 8), (1, 8)]


@pytest.mark.parametrize(("cores", "threads"), [(10, 6), (9, 5), (8, 4), (7, None)])
def test_what_takes_longest_takes_a_number_close_by_or_waits(cores: int, threads: int | None) -> None:
    # Operator 0 holds 4 cores for 60 ns when operator 1 becomes ready, whose best numbers are 6, 5 and 4.
    predicted = [{4: 60}, {4: 190, 5: 180, 6: 170, 7: 195}, {1: 0}]
    scheduler = CoRunScheduler([[], [2], []], predicted, ["pool", "conv", "add"], cores)
    assert [start.operator for start in scheduler.start()] == [0, 2]
    assert [start.threads for start in scheduler.finished(2, 0)] == ([] if threads is None else [threads])
    if threads is None:
        assert [start.threads for start in scheduler.finished(0, 60)] == [6]


@pytest.mark.parametrize(("left", "threads"), [(100, [3]), (50, [3]), (49, [])])
def test_narrow_takes_the_idle_cores_where_waiting_is_no_better(left: int, threads: list[int]) -> None:
    # 8 cores, of which operator 0 holds 5: with 3 threads conv takes 150, or 100 with 8 once operator 0 is over.
    predicted = [{5: left}, {2: 220, 3: 150, 8: 100}, {1: 0}]
    case: dict[str, Any] = {"dependencies": [[], [2], []], "times": predicted, "kinds": ["a", "conv", "b"], "cores": 8}
    for narrow, expected in ((True, threads), (False, [])):
        scheduler = CoRunScheduler(**case, narrow=narrow)
        assert [start.operator for start in scheduler.start()] == [0, 2]
        assert [start.threads for start in scheduler.finished(2, 0)] == expected


def test_small_operators_run_on_second_hardware_threads_of_an_operator_that_holds_all_cores() -> None:
    before = [[], [], [], [], [], [0]]
    predicted = [{1: 900, 2: 500}, {1: 30, 2: 20}, {1: 10, 2: 20}, {1: 20, 2: 30}, {1: 501, 2: 400}, {1: 5, 2: 6}]
    kinds = ["conv", "add", "relu", "mul", "pool", "tanh"]
    scheduler = CoRunScheduler(before, predicted, kinds, cores=2, strategy=4)
    assert scheduler.start() == [
        Start(0, 0, threads=2, cores=(0, 1)),
        Start(2, 2, threads=1, cores=(0,), sibling=True),
        Start(3, 3, threads=1, cores=(1,), sibling=True),
    ]
    assert scheduler.finished(3, 20) == [Start(1, 3, threads=1, cores=(1,), sibling=True)]
    assert scheduler.finished(2, 20) == []  # the last one would outlast what runs
    # 1 is still there, but holds no core: what takes longest comes first, and the small one beside it.
    assert scheduler.finished(0, 40) == [
        Start(4, 0, threads=2, cores=(0, 1)),
        Start(5, 2, threads=1, cores=(0,), sibling=True),
    ]
    without = CoRunScheduler(before, predicted, kinds, cores=2)
    assert without.start() == [Start(0, 0, threads=2, cores=(0, 1))]


@pytest.mark.parametrize(("takes", "started"), [(500, [0, 1]), (501, [0])])
def test_a_small_operator_ends_no_later_than_the_holder_of_all_cores(takes: int, started: list[int]) -> None:
    predicted = [{1: 900, 2: 500}, {1: takes, 2: 400}]
    scheduler = CoRunScheduler([[], []], predicted, ["conv", "pool"], cores=2, strategy=4)
    assert [start.operator for start in scheduler.start()] == started


def test_types_that_interfere_are_kept_separate() -> None:
    times, kinds = [{1: 100}, {1: 90}, {1: 80}], ["conv", "pool", "add"]
    scheduler = CoRunScheduler([[], [], []], times, kinds, cores=2, avoid={("conv", "pool")})
    assert [start.operator for start in scheduler.start(2000)] == [0, 2]
    assert [start.operator for start in scheduler.finished(2, 2080)] == []
    assert [start.operator for start in scheduler.finished(0, 2100)] == [1]


@given(CASES, st.data(), st.sampled_from([3, 4]))
def test_types_to_avoid_never_run_together(case: dict[str, Any], data: st.DataObject, strategy: Any) -> None:
    possible = list(itertools.combinations_with_replacement(["add", "conv", "pool"], 2))
    pairs = data.draw(st.sets(st.sampled_from(possible)))
    watched = Watched(CoRunScheduler(**case, strategy=strategy, avoid=pairs))
    actual = data.draw(listed(st.integers(0, 60), case["dependencies"]))
    timeline = run(watched, case["times"], actual)
    check_carried_out(timeline, case["dependencies"])
    rules = Rules(case, strategy, frozenset(pairs))
    for event in watched.events:
        rules.check(event)
    for one, other in itertools.combinations(timeline.spans, 2):
        if one.start_ns < other.end_ns and other.start_ns < one.end_ns:
            names = sorted(case["kinds"][int(span.details["operator"])] for span in (one, other))
            assert tuple(names) not in pairs or one.details["operator"] == other.details["operator"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cores": 0}, "at least 1 core, got 0"),
        ({"strategy": 5}, "strategy must be 1, 2, 3 or 4, got 5"),
        ({"times": [{1: 1}]}, "1 times for 2 operators"),
        ({"kinds": ["add"]}, "1 kinds for 2 operators"),
        ({"times": [{1: 1}, {3: 1}]}, "operator 1 has no predicted time for 1 to 2 threads"),
        ({"times": [{1: 1}, {1: -1}]}, "predicted times must be at least 0, got -1 ns for operator 1"),
        ({"times": [{1: 1}, {2: 2}]}, r"operator 0 \(add\) has no predicted time for 2 threads"),
        (
            {"strategy": 4, "times": [{2: 1}, {2: 2}]},
            r"operator 0 \(add\) has no predicted time for 1 thread;",
        ),
    ],
)
def test_what_cannot_be_scheduled_is_refused(arguments: dict[str, Any], message: str) -> None:
    plain = {"dependencies": [[], []], "times": [{1: 1}, {1: 1}], "kinds": ["add", "add"], "cores": 2}
    with pytest.raises(ScheduleError, match=message):
        CoRunScheduler(**{**plain, **arguments})


def test_strategy_1_needs_no_times_in_common() -> None:
    scheduler = CoRunScheduler([[], [0]], [{1: 1}, {2: 2}], ["add", "add"], cores=2, strategy=1)
    assert [start.threads for start in scheduler.start()] == [1]
    assert [start.threads for start in scheduler.finished(0, 1)] == [2]
