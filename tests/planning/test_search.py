"""The search as a whole: starts, trials, processes, learners, interruption."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bow.errors import ScheduleError, SettingError
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Partition, everything_on
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.baselines import BASELINES, baseline
from bow.planning.search.chains import Chain, ProgressAggregator, WalkStart, run_chains
from bow.planning.search.metropolis import Improvement, Limits, SearchSettings, Walk, descend, metropolis
from bow.planning.search.problem import Problem
from bow.planning.search.search import search
from bow.planning.tiles.planning import problem_of
from tests.planning.search_graphs import language_model, perceptron

NODE = load_topology("p100_node")
SHORT = SearchSettings(budget_s=None, proposals=60, patience=None, starts=("single", "data"))
PROBLEM = problem_of(perceptron(samples=32, sizes=(1024, 1024, 256)), NODE)


def test_what_is_found_takes_what_it_says_and_is_no_slower_than_its_starts() -> None:
    found = search(PROBLEM, SHORT)
    result = PROBLEM.simulate(found.partition.splits)
    assert result.makespan_ns == found.makespan_ns
    assert found.makespan_ns <= min(PROBLEM.simulate(baseline(PROBLEM, name)).makespan_ns for name in SHORT.starts)
    assert [chain.start.name for chain in found.chains] == ["single", "data"]
    assert found.chain in found.chains
    assert found.evaluated == sum(chain.walk.evaluated for chain in found.chains if chain.walk is not None)
    times = [best.makespan_ns for best in found.bests]
    assert times == sorted(set(times), reverse=True)
    assert times[-1] == found.makespan_ns


@pytest.mark.parametrize("memory_gib", [16.0, 0.001], ids=["fits", "is too small"])
def test_nothing_found_takes_longer_than_everything_on_any_one_device(memory_gib: float) -> None:
    slow = DeviceKind("slow", memory_gib=16, tflops=0.01, gb_per_s=1)
    fast = DeviceKind("fast", memory_gib=memory_gib, tflops=10, gb_per_s=500)
    links = (Link(("host", "gpu0", "gpu1"), 1e5, 0.01, shared=True),)
    devices = (Device("host", slow), Device("gpu0", fast), Device("gpu1", fast))
    problem = problem_of(PROBLEM.graph, DeviceTopology("host and GPUs", devices, links))
    alone = [problem.simulate(everything_on(PROBLEM.graph, device)) for device in range(3)]
    fastest_ns = min(each.makespan_ns for each in alone if each.refusal is None)
    found = search(problem, SearchSettings(budget_s=None, proposals=0, descend=False))
    assert found.makespan_ns <= fastest_ns


def test_what_is_found_explains_itself_and_has_a_timeline(tmp_path: Path) -> None:
    found = search(PROBLEM, SHORT)
    explained = found.explain(keep=1)
    assert explained.makespan_ns == found.makespan_ns
    assert found.timeline().makespan == pytest.approx(found.makespan_ns / 1e9)
    assert explained.tried > 0
    assert max(len(each.alternatives) for each in explained.operators) == 1
    assert found.explain(budget_s=0).left_out == len(PROBLEM.graph.operators)
    found.save(tmp_path / "folder" / "partition.json")
    assert Partition.from_json((tmp_path / "folder" / "partition.json").read_text()) == found.partition
    with pytest.raises(SettingError, match=r"cannot be written to .*; give another file"):
        found.save(tmp_path)


def test_equal_seeds_find_the_same_and_others_walk_elsewhere() -> None:
    walks = [search(PROBLEM, replace(SHORT, seed=seed, descend=False)).chains[0].walk for seed in (1, 1, 2)]
    found = [(walk.evaluated, walk.accepted, walk.splits) for walk in walks if walk is not None]
    assert found[0] == found[1] != found[2]


def test_processes_share_the_starts() -> None:
    alone = search(PROBLEM, SHORT)
    shared = search(PROBLEM, replace(SHORT, processes=2))
    assert shared.partition == alone.partition
    assert [chain.start for chain in shared.chains] == [chain.start for chain in alone.chains]


def test_the_best_of_several_trials_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cold: list[Walk] = []  # descents, greedy or at temperature 0

    def noted(walking: Callable[..., Walk], *arguments: Any, **limits: Any) -> Walk:
        walk = walking(*arguments, **limits)
        if not limits.get("temperature"):
            cold.append(walk)
        return walk

    monkeypatch.setattr("bow.planning.search.chains.descend", functools.partial(noted, descend))
    monkeypatch.setattr("bow.planning.search.chains.metropolis", functools.partial(noted, metropolis))
    settings = SearchSettings(budget_s=0.6, patience=None, starts=("model", "single", "single"), trial=0.5)
    found = search(PROBLEM, settings)
    walks = [chain.walk for chain in found.chains if chain.walk is not None]
    assert len(walks) == 3
    (descent,) = cold
    assert found.chain.walk is not None
    assert (found.chain.walk.splits, found.chain.walk.ending) == (descent.splits, descent.ending)
    assert found.makespan_ns <= min(walk.makespan_ns for walk in walks)


def test_the_better_half_of_the_walks_goes_on_from_round_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[tuple[int, int, float]] = []
    now = [100.0]

    def of_number(_: Problem, start: WalkStart, *others: Any, rung: int = 0) -> Chain:
        walked.append((rung, start.number, round(others[2] * 48)))
        now[0] += others[2]
        bests = (Improvement(0.0, 0, 100 - start.number - rung),)
        return Chain(start, Walk(start.splits, bests, 1, 1, 0, 0, 0.0, "budget"))

    monkeypatch.setattr("bow.planning.search.chains.run_chain", of_number)
    monkeypatch.setattr("bow.planning.search.chains.time", SimpleNamespace(perf_counter=lambda: now[0]))
    starts = [WalkStart("single", number, 1, baseline(PROBLEM, "single"), 1) for number in range(4)]
    chains = run_chains(PROBLEM, starts, SearchSettings(budget_s=4.0, trial=0.5), lambda *_: True)
    # Of four seconds two are for trials, of which each of two rounds has one.
    assert walked[:-1] == [(0, 0, 12), (0, 1, 12), (0, 2, 12), (0, 3, 12), (1, 3, 24), (1, 2, 24)]
    assert walked[-1] == (2, 3, 96)
    assert [chain.walk.proposals for chain in chains if chain.walk is not None] == [1, 1, 2, 3]


def test_trials_have_no_patience_and_what_it_takes_to_begin_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limits = [100.0], []
    simulation = Problem.simulation

    def slowly(self: Problem, splits: Any, learners: int = 1) -> Any:
        now[0] += 0.1
        return simulation(self, splits, learners)

    def walking(simulated: Any, _: Any, limit: Limits, *others: Any, **more: Any) -> Walk:
        limits.append(limit)
        now[0] += limit.budget_s or 0.0
        return Walk(simulated.splits, (Improvement(0.0, 0, 100),), 1, 1, 0, 0, 0.0, "budget")

    monkeypatch.setattr(Problem, "simulation", slowly)
    monkeypatch.setattr("bow.planning.search.chains.metropolis", walking)
    monkeypatch.setattr("bow.planning.search.chains.time", SimpleNamespace(perf_counter=lambda: now[0]))
    starts = [WalkStart("single", number, 1, baseline(PROBLEM, "single"), 1) for number in range(2)]
    run_chains(PROBLEM, starts, SearchSettings(budget_s=4.0, trial=0.5, descend=False), lambda *_: True)
    assert [limit.budget_s for limit in limits] == pytest.approx([0.9, 0.9, 1.9])
    assert [limit.patience for limit in limits] == [None, None, 0.5]


def test_what_was_found_before_ctrl_c_is_kept_in_whatever_round_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [WalkStart("single", number, 1, baseline(PROBLEM, "single"), 1) for number in range(3)]

    def interrupted_in(call: int) -> list[Chain]:
        calls = iter(range(100))

        def walking(_: Problem, start: WalkStart, *others: Any, rung: int = 0) -> Chain:
            if next(calls) == call:
                raise KeyboardInterrupt  # while the simulation is built, say
            bests = (Improvement(0.0, 0, 101 - rung), Improvement(0.5, 1, 100 - rung))
            return Chain(start, Walk(start.splits, bests, 1, 1, 0, 0, 1.0, "budget"))

        monkeypatch.setattr("bow.planning.search.chains.run_chain", walking)
        return run_chains(PROBLEM, starts, SearchSettings(budget_s=60.0), lambda *_: True)

    with pytest.raises(KeyboardInterrupt):
        interrupted_in(0)
    assert [len(interrupted_in(call)) for call in range(1, 7)] == [1, 2, 3, 3, 3, 3]
    assert min(chain.sample_ns for chain in interrupted_in(4)) == 99  # one had gone on for a second round


def test_ctrl_c_between_a_walk_and_the_descent_keeps_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    start, simulation, calls = WalkStart("data", 0, 1, baseline(PROBLEM, "data"), 1), Problem.simulation, iter(range(9))

    def interrupted(self: Problem, *arguments: Any) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return simulation(self, *arguments)

    monkeypatch.setattr(Problem, "simulation", interrupted)
    (chain,) = run_chains(PROBLEM, [start], SHORT, lambda *_: True)
    assert chain.is_interrupted
    assert chain.walk is not None
    assert chain.walk.proposals == SHORT.proposals


def test_a_start_that_does_not_fit_takes_no_part_in_rungs() -> None:
    problem = small_memory(0.009)
    starts = [
        WalkStart(name, number, 1, baseline(problem, name), 1) for number, name in enumerate(("single", "data", "data"))
    ]
    chains = run_chains(problem, starts, SearchSettings(budget_s=0.5, patience=None), lambda *_: True)
    refused = [chain.refusal is not None for chain in chains]
    assert any(refused)
    assert [chain.walk is None for chain in chains] == refused


def test_walks_with_so_many_proposals_each_have_no_rungs() -> None:
    settings = SearchSettings(budget_s=60.0, proposals=25, patience=None, starts=("single", "data"), descend=False)
    walks = [chain.walk for chain in search(PROBLEM, settings).chains]
    assert [walk.proposals for walk in walks if walk is not None] == [25, 25]


def test_a_walk_behind_another_counts_on() -> None:
    def walk(first: int, last: int) -> Walk:
        bests = (Improvement(0.0, 0, first), Improvement(1.0, 5, last))
        return Walk((), bests, 10, 8, 4, 2, 3.0, "budget")

    both = walk(100, 80).followed_by(walk(80, 70))
    assert both.bests == (Improvement(0.0, 0, 100), Improvement(1.0, 5, 80), Improvement(4.0, 15, 70))
    assert (both.proposals, both.evaluated, both.accepted, both.refused, both.seconds) == (20, 16, 8, 4, 6.0)
    assert both.makespan_ns == 70


def test_who_watches_hears_of_all_walks_and_ends_them() -> None:
    told: list[tuple[float, int, float]] = []

    def progress(seconds: float, proposals: int, best_ns: float) -> bool:
        told.append((seconds, proposals, best_ns))
        return len(told) < 2

    found = search(PROBLEM, replace(SHORT, proposals=10**6), progress)
    assert len(told) == 2
    assert found.chains[-1].is_interrupted
    assert len(found.chains) == 1
    assert found.makespan_ns <= told[0][2]


def test_the_tally_adds_up_walks() -> None:
    told: list[tuple[int, float]] = []
    tally = ProgressAggregator(lambda _, proposals, best_ns: told.append((proposals, best_ns)) is None)
    assert tally.report(0, 10, 5.0)
    assert tally.report(1, 7, 8.0)
    assert tally.report(0, 20, 4.0)
    assert told == [(10, 5.0), (17, 5.0), (27, 4.0)]


@pytest.mark.parametrize("noise_scale", [None, 1e9, 200.0, 1e-3])
def test_learners_are_compared_by_the_time_to_an_accuracy(noise_scale: float | None) -> None:
    problem, settings = replace(PROBLEM, batch_size=32), replace(SHORT, starts=("data",))
    alone = {k: search(problem, replace(settings, learners=(k,))).makespan_ns for k in (1, 2, 4)}
    found = search(problem, replace(settings, learners=(1, 2, 4), noise_scale=noise_scale))
    together = {k: 32 * k for k in alone}
    samples = {k: n if noise_scale is None else n / (1 + n / noise_scale) for k, n in together.items()}
    best = min(alone, key=lambda k: alone[k] / samples[k])
    assert found.partition.learners == best
    assert found.makespan_ns == alone[best]
    assert found.sample_ns == pytest.approx(alone[best] / samples[best])
    if noise_scale == 1e-3:
        assert alone[best] == min(alone.values())  # no sample but the first is worth anything
    if noise_scale == 1e9:
        assert best == search(problem, replace(settings, learners=(1, 2, 4))).partition.learners


def test_learners_share_the_devices_and_are_compared_by_batch() -> None:
    found = search(PROBLEM, replace(SHORT, starts=("data",), learners=(1, 4)))
    assert {chain.start.learners for chain in found.chains} == {1, 4}
    assert found.batch_ns == found.makespan_ns / found.partition.learners
    assert found.batch_ns == min(chain.sample_ns for chain in found.chains)
    assert 0 < found.bound_ns <= found.batch_ns


def small_memory(gib: float) -> Problem:
    devices = tuple(Device(each.name, replace(each.kind, memory_gib=gib)) for each in NODE.devices)
    return problem_of(PROBLEM.graph, replace(NODE, devices=devices))


def test_a_start_that_does_not_fit_is_left_out_with_the_reason() -> None:
    found = search(small_memory(0.009), replace(SHORT, starts=("single", "data", "random")))
    refused = [chain for chain in found.chains if chain.walk is None]
    assert refused
    assert all("does not fit" in (chain.refusal or "") for chain in refused)
    assert all(math.isinf(chain.sample_ns) for chain in refused)


def test_where_no_start_fits_there_is_one_sentence() -> None:
    with pytest.raises(ScheduleError, match="no starting partition fits into memory: the partition does not fit"):
        search(small_memory(1e-6), SHORT)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("graph", [PROBLEM.graph, language_model()], ids=["perceptron", "language model"])
def test_every_baseline_is_legal_and_can_be_started_from(name: str, graph: OperatorGraph) -> None:
    problem = problem_of(graph, NODE)
    splits = baseline(problem, name)
    problem.partition(splits).check(graph, NODE.num_devices, RULES)
    start = WalkStart(name, 0, 1, splits, 1)
    (chain,) = run_chains(problem, [start], replace(SHORT, proposals=3, descend=False), lambda *_: True)
    assert isinstance(chain, Chain)
    assert chain.sample_ns <= problem.simulate(splits).makespan_ns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"starts": ("best",)}, "starts must be among .*, got best"),
        ({"starts": ()}, "got none"),
        ({"moves": "wild"}, "moves must be one of"),
        ({"budget_s": 0.0}, "budget_s must be .*above 0"),
        ({"trial": 1.0}, "trial must be at least 0 and below 1, got 1.0"),
        ({"learners": "auto"}, "learners must be .*at least 1, got .auto"),
        ({"learners": None}, "learners must be .*at least 1, got"),
        ({"learners": (0,)}, "learners must be .*at least 1"),
        ({"noise_scale": 0}, "noise_scale must be .*above 0"),
        ({"noise_scale": "large"}, "noise_scale must be"),
        ({"patience": 0}, "patience must be above 0 and at most 1, got 0"),
        ({"temperature": -1}, "temperature must be at least 0, got -1"),
        ({"proposals": -1}, "proposals must be .*at least 0, got -1"),
        ({"budget_s": None, "patience": None}, "never ends; set one of them"),
        ({"processes": 0}, "processes must be .*at least 1"),
    ],
)
def test_settings_without_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        SearchSettings(**changes)


def test_one_value_may_stand_for_a_list_of_one() -> None:
    changes: dict[str, Any] = {"starts": "data", "learners": 2}
    assert SearchSettings(**changes) == SearchSettings(starts=("data",), learners=(2,))
    with pytest.raises(SettingError, match="got exprt"):
        SearchSettings(**{**changes, "starts": "exprt"})


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(SettingError, match="there is no baseline 'best'"):
        baseline(PROBLEM, "best")
