"""All methods behind one signature, and the table of what they come to."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from benchmarks.placement_comparison import compare, table
from benchmarks.placement_machine import k80_machine
from bow.errors import RuntimeUnavailableError, ScheduleError, SettingError
from bow.planning.placement import methods
from bow.planning.placement.evaluation import SearchBudget
from bow.planning.placement.groups import module_groups
from bow.planning.placement.methods import METHODS, SEARCHES, place
from bow.planning.simulator.native_simulator import library
from tests.planning.placement.placed_steps import evaluator, unrolled

BUDGET = SearchBudget(placements=48)


@pytest.fixture
def evaluate():
    graph = unrolled(steps=3)
    return evaluator(graph, module_groups(graph))


@pytest.fixture
def compiled() -> None:
    try:
        library()
    except RuntimeUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("compiled")
def test_every_method_that_can_places_all_groups_and_its_time_is_the_simulators(evaluate):
    rows = compare(evaluate.groups, evaluate, BUDGET)
    assert [row.method for row in rows] == list(METHODS)
    for row in rows:
        assert (row.seconds is None) == bool(row.why_not)
        if row.seconds is not None:
            assert evaluate.problem.simulate(row.splits).makespan_ns / 1e9 == pytest.approx(row.seconds)
        if row.devices is not None:
            assert row.splits == evaluate.groups.splits(row.devices)
    times = {row.method: row.seconds for row in rows}
    assert times["cpu"] is not None
    assert times["mcmc"] <= min(times["gpu"], times["expert"])  # it begins there
    learned = next(row for row in rows if row.method == "learned")
    assert learned.greedy_s is not None


def test_a_method_gives_the_same_placement_for_the_same_seed(evaluate):
    for method in ("cpu", "gpu", "expert", "learned"):
        first, again = (place(method, evaluate.groups, evaluate, BUDGET, seed=3) for _ in range(2))
        assert first.splits == again.splits


@pytest.mark.parametrize("best", ["drawn", "decoded", "one device"])
def test_what_is_learned_is_never_slower_than_what_was_seen_or_one_device(best, evaluate, monkeypatch):
    groups = len(evaluate.groups)
    ranked = sorted(
        [(0,) * groups, (1,) * groups, (1, 2) * (groups // 2) + (1,) * (groups % 2)], key=lambda each: evaluate([each])
    )
    drawn, decoded = {"drawn": (0, 1), "decoded": (1, 0), "one device": (2, 2)}[best]
    found = SimpleNamespace(best=SimpleNamespace(placement=ranked[drawn]), greedy=ranked[decoded])
    monkeypatch.setattr(methods, "train_policy", lambda *arguments, **options: found)
    placed = place("learned", evaluate.groups, evaluate, BUDGET)
    assert evaluate([placed.devices]) == evaluate([ranked[0]])
    assert placed.greedy == found.greedy


def test_searches_look_at_no_more_placements_than_they_may(evaluate, monkeypatch):
    found, train = [], methods.train_policy

    def trained(*arguments, **options):
        found.append(train(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(methods, "train_policy", trained)
    place("learned", evaluate.groups, evaluate, SearchBudget(placements=7))
    assert found[0].history.samples == 7
    asked = []

    def told(problem, settings):
        asked.append(settings)
        raise ScheduleError("that was it")

    monkeypatch.setattr(methods, "search", told)
    with pytest.raises(ScheduleError, match="that was it"):
        place("soap", evaluate.groups, evaluate, BUDGET)
    assert asked[0].proposals * len(asked[0].starts) == BUDGET.placements
    assert not asked[0].descend


def test_what_a_method_cannot_do_is_said_in_its_row_and_the_others_go_on(evaluate, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    rows = compare(evaluate.groups, evaluate, BUDGET, methods=("scotch", "gpu"))
    assert rows[0].seconds is None
    assert "apt-get install scotch" in rows[0].why_not
    assert rows[1].seconds is not None


def test_a_placement_that_does_not_fit_says_what_is_too_small():
    graph = unrolled(steps=3)
    evaluate = evaluator(graph, module_groups(graph), k80_machine(2, memory_gib=1e-6))
    (row,) = compare(evaluate.groups, evaluate, BUDGET, methods=("gpu",))
    assert row.seconds is None
    assert row.why_not.startswith("gpu0 (device 1) needs")
    headings, lines = table([row])
    assert len(headings) == len(lines[0])


def test_times_are_shown_as_multiples_of_the_best(evaluate):
    rows = compare(evaluate.groups, evaluate, BUDGET, methods=("cpu", "gpu"))
    lines = table(rows)[1]
    assert "1.00" in [line[2] for line in lines]
    assert all(float(line[2]) >= 1 for line in lines)


def test_an_unknown_method_is_refused_with_those_that_there_are(evaluate):
    with pytest.raises(SettingError, match="expert"):
        compare(evaluate.groups, evaluate, BUDGET, methods=("guess",))


def test_searches_are_methods():
    assert set(METHODS) > SEARCHES
