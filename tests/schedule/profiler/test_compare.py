"""Comparing policies: what is best, and when that is worth anything, from made-up seconds; and a real comparison."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from bow.devices import available_cores
from bow.errors import RuntimeUnavailableError, SettingError
from bow.schedule import FirstComeSchedule, OrderedSchedule, Schedule, Timeline
from bow.schedule.profiler import BoundStep, Comparison, Policy, compare, make_policies
from bow.schedule.scheduler import critical_path
from tests.schedule.profiler.steps import branches, made_up

PATH = critical_path([(), (0,)], [1, 1])

ONE = Policy("one thread", Schedule.sequential(2, 1), Timeline())
TWO = Policy("two threads", Schedule.sequential(2, 2), Timeline())
QUEUE = Policy("queue", FirstComeSchedule((1, 1)), Timeline())
ORDER = Policy("order", OrderedSchedule((1, 1), order=((0,), (1,))), Timeline())


def found(again: Mapping[str, tuple[float, ...]] | None = None, **seconds: tuple[float, ...]) -> Comparison:
    named = {name.replace("_", " "): own for name, own in seconds.items()}
    policies = tuple(policy for policy in (ONE, TWO, QUEUE, ORDER) if policy.name in named)
    return Comparison(policies, named, PATH, again or {})


def test_the_best_is_that_of_the_least_median() -> None:
    made = found(one_thread=(3.0, 3.0, 3.0), two_threads=(1.0, 4.0, 5.0), queue=(2.0, 9.0, 2.0))
    assert made.best is QUEUE
    assert made.best_sequential is ONE
    assert made.median_s(TWO) == 4.0


@pytest.mark.parametrize(
    ("seconds", "chosen", "summary"),
    [
        (0.9, QUEUE, "queue: 1.11 times as fast as one thread"),
        (0.979, QUEUE, "queue: 1.02 times as fast as one thread"),
        (0.98, ONE, "one thread: queue is 1.02 times as fast, below the 2% threshold for using a schedule"),
        (0.99, ONE, "one thread: queue is 1.01 times as fast, below the 2% threshold for using a schedule"),
        (1.1, ONE, "one thread: no policy that runs operators in parallel is faster"),
    ],
)
def test_a_policy_is_chosen_that_wins_by_more_than_two_percent(seconds: float, chosen: Policy, summary: str) -> None:
    made = found(one_thread=(1.0,) * 3, queue=(seconds,) * 3)
    assert made.choice is chosen
    assert made.summary == summary


def test_ratios_are_those_of_a_turn_so_that_a_busy_machine_meets_both() -> None:
    made = found(one_thread=(1.0, 10.0, 100.0), queue=(0.5, 5.0, 90.0))
    assert made.ratio(QUEUE, ONE) == 0.5
    assert made.ratio(ONE, QUEUE) == 2.0


def test_what_was_timed_again_decides() -> None:
    again = {"one thread": (2.0, 2.0), "order": (1.0, 1.0)}
    made = found(again, one_thread=(1.0,), two_threads=(0.5,), queue=(0.1,), order=(1.5,))
    assert (made.best, made.best_sequential, made.choice) == (ORDER, ONE, ORDER)
    assert made.median_s(ONE) == 2.0
    assert made.median_s(QUEUE) == 0.1


def test_turns_of_different_races_are_not_paired() -> None:
    again = {"one thread": (2.0, 2.0), "order": (1.0, 1.0)}
    made = found(again, one_thread=(1.0,), queue=(0.5,), order=(1.5,))
    assert made.ratio(QUEUE, ONE) == 0.5
    assert made.ratio(ORDER, ONE) == 0.5


def test_among_some_policies_those_count_that_are_left() -> None:
    again = {"one thread": (1.0,), "queue": (0.1,), "order": (0.5,)}
    made = found(again, one_thread=(1.0,), queue=(0.1,), order=(0.5,))
    assert made.best is QUEUE
    assert replace(made, policies=(ONE, ORDER)).choice is ORDER
    not_again = replace(
        found({"queue": (0.1,), "one thread": (1.0,)}, one_thread=(1.0,), order=(0.5,)), policies=(ORDER,)
    )
    assert not_again.best is ORDER


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int]]:
    """Who was timed, and how often; policies later in line are faster, but for sequential ones."""
    calls: list[tuple[list[str], int]] = []

    def timed_in_turns(
        subject: BoundStep, policies: Sequence[Policy], turns: int, window_s: float, progress: object = None
    ) -> dict[str, tuple[float, ...]]:
        calls.append(([policy.name for policy in policies], turns))
        speeds = {policy.name: 0.5 if policy.name == "sequential, 2 threads" else 0.3 for policy in policies}
        return {name: (speed,) * turns for name, speed in speeds.items()}

    monkeypatch.setattr(importlib.import_module("bow.schedule.profiler.compare"), "timed_in_turns", timed_in_turns)
    return calls


def test_the_best_of_every_sort_are_timed_again_for_twice_as_many_turns(timed: list[tuple[list[str], int]]) -> None:
    subject, profile = branches(), made_up(branches())
    policies = make_policies(subject, profile, 2)
    made = compare(subject, profile, policies=policies, turns=4)
    (first, first_turns), (again, again_turns) = timed
    assert first == [policy.name for policy in policies]
    assert (first_turns, again_turns) == (4, 8)
    assert again == [
        "sequential, 1 thread",
        "first come, 2 executors of 1 thread",
        "critical path, 2 executors of 1 thread",
        "critical path, fixed order, 2 executors of 1 thread",
    ]
    assert made.finalist_seconds.keys() == set(again)
    assert made.path == critical_path(subject.dependencies, profile.nanoseconds(1))


def test_policies_are_measured_where_none_are_given(timed: list[tuple[list[str], int]]) -> None:
    told: list[str] = []
    made = compare(branches(), progress=told.append)
    cores = len(available_cores())
    least = len(make_policies(branches(), made_up(branches(), tuple(range(1, cores + 1))), cores))
    assert least <= len(made.policies) <= least + 1  # one more where operators disturbed each other
    assert any("operators with 1 thread" in text for text in told)


def test_without_executors_that_run_side_by_side_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def native() -> None:
        raise RuntimeUnavailableError("there is no compiler")

    monkeypatch.setattr(importlib.import_module("bow.schedule.profiler.compare"), "native", native)
    with pytest.raises(RuntimeUnavailableError, match="there is no compiler"):
        compare(branches(), made_up(branches()))


def test_without_anything_sequential_there_is_nothing_to_compare_with() -> None:
    subject, profile = branches(), made_up(branches())
    policies = [policy for policy in make_policies(subject, profile, 2) if not policy.is_sequential]
    with pytest.raises(
        SettingError, match="compared with a sequential one, and there is none; add a sequential policy"
    ):
        compare(subject, profile, policies=policies)


@pytest.mark.skipif(len(available_cores()) < 2, reason="policies for two cores")
def test_a_real_comparison_times_everybody_in_every_turn() -> None:
    subject, profile = branches(), made_up(branches())
    policies = [policy for policy in make_policies(subject, profile, 2) if isinstance(policy.schedule, OrderedSchedule)]
    told: list[str] = []
    made = compare(subject, profile, policies=policies, turns=2, window_s=0.0, progress=told.append)
    assert {name: len(own) for name, own in made.seconds.items()} == {policy.name: 2 for policy in policies}
    assert all(len(own) == 4 and min(own) > 0 for own in made.finalist_seconds.values())
    assert made.best_sequential.name in made.finalist_seconds
    assert told[0] == f"turn 1 of 2, {len(policies)} take part"
    assert made.choice.name in made.summary
