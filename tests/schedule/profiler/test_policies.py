"""Policies: whatever they do, every operator runs once, behind what it reads, and the numbers are the graph's."""

from typing import Any

import pytest
import torch

from bow.devices import available_cores, cores
from bow.devices.cores import HardwareThread
from bow.runtime.local import LocalRuntime
from bow.schedule import OrderedSchedule, Schedule
from bow.schedule.profiler import BoundStep, Policy, make_policies, policies
from bow.schedule.profiler.measuring import numbers_of_threads
from bow.schedule.profiler.policies import (
    SMALL_NS,
    configurations,
    shared_by_neighbours,
    strategy_policy,
)
from bow.schedule.scheduler import CoRunScheduler, critical_path
from tests.machines import manycore, server
from tests.runtime.test_local import assert_same
from tests.schedule.profiler.steps import branches, made_up
from tests.schedule.scheduler.watching import check_carried_out

CORES = len(available_cores())


def made(cores: int) -> list[Policy]:
    return make_policies(branches(), made_up(branches(), (1, 2, 4)[: cores.bit_length()]), cores)


def named(cores: int, name: str) -> Policy:
    return next(policy for policy in made(cores) if policy.name == name)


def test_configurations_fill_the_cores_as_far_as_they_can() -> None:
    assert configurations(1) == [(1, 1)]
    assert configurations(2) == [(1, 2), (2, 1)]
    assert configurations(6) == [(1, 6), (2, 3), (4, 1), (6, 1)]
    assert configurations(68)[-2:] == [(64, 1), (68, 1)]
    for count in range(1, 40):
        assert all(executors * threads <= count for executors, threads in configurations(count))


def test_there_is_a_policy_for_everything_that_the_papers_compare() -> None:
    names = [policy.name for policy in made(2)]
    assert names == [
        "sequential, 1 thread",
        "sequential, 2 threads",
        "first come, 2 executors of 1 thread",
        "critical path, 2 executors of 1 thread",
        "critical path, small at once, 2 executors of 1 thread",
        "critical path, stay, 2 executors of 1 thread",
        "critical path, fixed order, 2 executors of 1 thread",
        "strategy 1",
        "strategy 2",
        "strategy 3",
        "strategy 3, narrow",
    ]
    assert [policy.name for policy in made(2) if policy.is_sequential] == names[:2]
    assert len({policy.name for policy in made(4)}) == len(made(4)) > len(names)


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
def test_in_simulated_time_every_operator_runs_once_and_behind_what_it_reads(cores: int) -> None:
    for policy in made(cores):
        check_carried_out(policy.predicted, branches().dependencies)


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
def test_every_schedule_fits_the_operators_and_the_cores(cores: int) -> None:
    for policy in made(cores):
        policy.schedule.check(branches().dependencies)
        assert sum(policy.schedule.threads) <= cores or policy.is_sequential


@pytest.mark.parametrize("position", range(len(make_policies(branches(), made_up(branches()), 2))))
def test_every_policy_gives_the_numbers_of_the_graph(position: int) -> None:
    if CORES < 2:
        pytest.skip("policies for two cores")
    policy = made(2)[position]
    subject = branches()
    expected = reference(subject)
    with LocalRuntime(subject.graph, policy.schedule) as runtime:
        made_here = subject.run(runtime, record=True)
    assert runtime.timeline is not None
    ran = sorted(int(span.details["operator"]) for span in runtime.timeline.spans)
    assert ran == list(range(subject.num_operators))
    if len({*policy.schedule.threads, *_threads_of(policy.schedule)}) == 1 and policy.schedule.threads[0] == 1:
        assert_same(made_here, expected)
    else:  # with two threads, sums may be cut in another way
        torch.testing.assert_close(made_here.loss, expected.loss)
        torch.testing.assert_close(made_here.gradients, expected.gradients)


def reference(subject: BoundStep) -> Any:
    return subject.graph.run(subject.parameters, subject.buffers, subject.batch, seed=0)


def _threads_of(schedule: Schedule) -> list[int]:
    """By operator of an order: how many executors it holds."""
    if not isinstance(schedule, OrderedSchedule):
        return [1]
    return [len(held) or 1 for held in schedule.executors_of(branches().num_operators)]


def test_one_after_another_takes_what_operators_take() -> None:
    profile = made_up(branches())
    for policy, threads in ((named(2, "sequential, 1 thread"), 1), (named(2, "sequential, 2 threads"), 2)):
        assert policy.predicted.makespan == pytest.approx(profile.step_s[threads])


def test_nothing_is_simulated_faster_than_the_critical_path_or_slower_than_one_executor() -> None:
    nanoseconds = made_up(branches()).nanoseconds(1)
    path = critical_path(branches().dependencies, nanoseconds)
    for policy in made(2):
        if policy.schedule.threads == (1, 1) and not policy.name.startswith("strategy"):
            assert path.length <= policy.predicted.makespan * 1e9 <= path.total
    longest_first = named(2, "critical path, 2 executors of 1 thread")
    assert longest_first.schedule.priority == path.levels
    assert longest_first.predicted.makespan * 1e9 < path.total


@pytest.mark.parametrize(
    ("topology", "cores", "caches"),
    [
        (manycore(tiles=3, threads_per_core=1), 6, (0, 0, 2, 2, 4, 4)),
        (manycore(tiles=3, threads_per_core=1), 4, (0, 0, 2, 2)),
        (manycore(tiles=3, threads_per_core=1), 3, None),  # the third has no neighbour
        (manycore(tiles=1, threads_per_core=1), 2, None),  # no choice
        (manycore(tiles=3, threads_per_core=2), 12, None),  # pairs of hardware threads, too
        (server(sockets=2, cores_per_socket=4, threads_per_core=1), 8, None),
    ],
)
def test_where_neighbours_share_a_cache_the_strategies_know(
    topology: tuple[HardwareThread, ...], cores: int, caches: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = tuple(thread.number for thread in topology)
    monkeypatch.setattr(policies, "hardware_threads", lambda: topology)
    monkeypatch.setattr(policies, "available_cores", lambda: numbers)
    monkeypatch.setattr(policies, "physical_first", list)
    assert shared_by_neighbours(cores) == caches
    given: list[Any] = []

    def spied(before: Any, times: Any, *arguments: Any, **settings: Any) -> CoRunScheduler:
        given.append(times)
        return CoRunScheduler(before, times, *arguments, **settings)

    monkeypatch.setattr(policies, "CoRunScheduler", spied)
    profile = made_up(branches(), (1, 2))
    strategy_policy(branches(), profile, cores, 3)
    if caches is None:
        assert given == [profile.curves()]
    else:
        assert (given[0].caches, given[0].least) == (caches, profile.curves())
        assert [given[0].is_better_separate(0, threads) for threads in (1, 2)] == [True, False]


def of_two_threads(monkeypatch: pytest.MonkeyPatch, machine: list[int]) -> None:
    """A machine whose hardware threads, in the order in which executors get them, are on these physical cores."""
    threads = tuple(HardwareThread(number, core, 0) for number, core in enumerate(machine))
    for module in (cores, policies):
        monkeypatch.setattr(module, "hardware_threads", lambda: threads)
        monkeypatch.setattr(module, "available_cores", lambda: tuple(range(len(machine))))
        monkeypatch.setattr(module, "physical_first", list)


@pytest.mark.parametrize(
    ("threads", "physical"),
    [([0, 1], 0), ([0, 0], 1), ([0, 1, 0, 1], 2), ([0, 1, 2, 0], 0), ([0, 1, 2, 0, 1], 0), ([0] * 4, 0), ([0], 0)],
)
def test_strategy_4_is_for_cores_that_have_two_hardware_threads_each(
    monkeypatch: pytest.MonkeyPatch, threads: list[int], physical: int
) -> None:
    of_two_threads(monkeypatch, threads)
    assert cores.cores_with_two_threads() == physical
    assert ("strategy 4" in [policy.name for policy in made(len(threads))]) == (physical > 0)
    assert all(policy.name != "strategy 4" for policy in made(len(threads) + 1))  # of which some are another learner's


def test_operators_are_measured_on_all_physical_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    of_two_threads(monkeypatch, [*range(6), *range(6)])
    assert numbers_of_threads(12) == [1, 2, 4, 6, 8, 12]
    assert numbers_of_threads(4) == [1, 2, 4]


@pytest.mark.parametrize("places", [[(0,), (1,)], [(0,), (0,)]], ids=["two threads", "one core for both"])
def test_strategy_4_runs_small_operators_beside_a_large_one(
    monkeypatch: pytest.MonkeyPatch, places: list[tuple[int, ...]]
) -> None:
    if CORES < 2:
        pytest.skip("two executors")
    own = available_cores()
    of_two_threads(monkeypatch, [0, 0])
    policy = named(2, "strategy 4")
    assert isinstance(policy.schedule, OrderedSchedule)
    beside = policy.schedule.order[1]
    assert beside
    subject = branches()
    times = made_up(subject).nanoseconds(1)
    assert max(times[operator] for operator in beside) < max(times)
    expected = reference(subject)
    held = [tuple(own[place] for place in each) for each in places]
    with LocalRuntime(subject.graph, policy.schedule, cores=held) as runtime:
        assert_same(subject.run(runtime, record=True), expected)
    assert runtime.timeline is not None
    ran = {int(span.details["operator"]) for span in runtime.timeline.spans if span.place == "executor 1"}
    assert ran == set(beside)


def test_a_fixed_order_is_that_of_the_simulated_critical_path() -> None:
    asked = named(2, "critical path, 2 executors of 1 thread")
    fixed = named(2, "critical path, fixed order, 2 executors of 1 thread")
    assert fixed.predicted == asked.predicted
    assert isinstance(fixed.schedule, OrderedSchedule)
    for executor, lane in enumerate(fixed.schedule.order):
        own = [span for span in asked.predicted.spans if span.place == f"executor {executor}"]
        assert [int(span.details["operator"]) for span in sorted(own, key=lambda span: span.start_ns)] == list(lane)


def test_small_operators_are_those_that_take_no_longer_than_handing_them_over() -> None:
    small = named(2, "critical path, small at once, 2 executors of 1 thread").schedule.small
    times = made_up(branches()).nanoseconds(1)
    assert small == tuple(index for index, time in enumerate(times) if time <= SMALL_NS)
    assert small
    assert named(2, "critical path, stay, 2 executors of 1 thread").schedule.stay


def test_narrow_is_strategy_3_on_fewer_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def spied(*arguments: Any, **settings: Any) -> CoRunScheduler:
        given.append((settings["strategy"], settings["narrow"]))
        return CoRunScheduler(*arguments, **settings)

    monkeypatch.setattr(policies, "CoRunScheduler", spied)
    assert strategy_policy(branches(), made_up(branches()), 2, 3, narrow=True).name == "strategy 3, narrow"
    assert strategy_policy(branches(), made_up(branches()), 2, 3).name == "strategy 3"
    assert given == [(3, True), (3, False)]


def test_strategies_give_operators_the_threads_that_they_are_fastest_with() -> None:
    curves = made_up(branches()).curves()
    held = named(2, "strategy 1").schedule.executors_of(len(curves))
    assert [len(own) for own in held] == [min(curve, key=lambda n, of=curve: of[n]) for curve in curves]
    assert {len(own) for own in held} == {1, 2}
