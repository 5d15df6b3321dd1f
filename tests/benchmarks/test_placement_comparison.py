"""All methods behind one signature, and what they come to."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from benchmarks import harness, placement, placement_comparison
from benchmarks.placement_comparison import METHODS, compare
from benchmarks.placement_machine import k80_machine
from bow.errors import RuntimeUnavailableError, ScheduleError
from bow.planning.placement import methods
from bow.planning.placement.groups import SearchBudget, module_groups
from bow.planning.simulator.simulation import library
from tests.planning.placement.placed_steps import evaluator, unrolled

BUDGET = SearchBudget(placements=48)


def place(method, evaluate, budget, seed=0):
    return METHODS[method](evaluate, budget, seed, lambda message: None)


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
    rows = compare(evaluate, BUDGET)
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
        first, again = (place(method, evaluate, BUDGET, seed=3) for _ in range(2))
        assert first.splits == again.splits


@pytest.mark.parametrize(
    ("drawn_s", "greedy_s", "best"), [(1.0, 1.5, "drawn"), (1.5, 1.0, "greedy"), (4.0, 5.0, "gpu"), (4.0, None, "gpu")]
)
def test_no_search_ends_slower_than_what_it_has_seen_or_one_device(drawn_s, greedy_s, best, evaluate, monkeypatch):
    count = len(evaluate.groups)
    placements = {"cpu": (0,) * count, "gpu": (1,) * count, "drawn": (0, *(1,) * (count - 1)), "greedy": (2,) * count}
    seconds = {"cpu": 3.0, "gpu": 2.0, "drawn": drawn_s, "greedy": greedy_s}
    evaluate._known |= {placement: seconds[name] for name, placement in placements.items()}
    found = SimpleNamespace(best=SimpleNamespace(placement=placements["drawn"]), greedy=placements["greedy"])
    monkeypatch.setattr(methods, "train_policy", lambda *arguments, **options: found)
    monkeypatch.setattr(methods, "multi_start_metropolis", lambda *arguments: placements["drawn"])
    learned, walked = (place(method, evaluate, BUDGET) for method in ("learned", "mcmc"))
    assert learned.devices == placements[best]
    assert learned.splits == evaluate.groups.splits(placements[best])
    assert learned.greedy == placements["greedy"]
    assert walked.devices == placements["drawn" if drawn_s < 2.0 else "gpu"]


def test_searches_look_at_no_more_placements_than_they_may(evaluate, monkeypatch):
    found, train = [], methods.train_policy

    def trained(*arguments, **options):
        found.append(train(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(methods, "train_policy", trained)
    place("learned", evaluate, SearchBudget(placements=7))
    assert found[0].samples == 7
    asked = []

    def told(problem, settings):
        asked.append(settings)
        raise ScheduleError("that was it")

    monkeypatch.setattr(placement_comparison, "search", told)
    with pytest.raises(ScheduleError, match="that was it"):
        place("soap", evaluate, BUDGET)
    assert asked[0].proposals * len(asked[0].starts) == BUDGET.placements
    assert not asked[0].descend


@pytest.mark.usefixtures("compiled")  # before the compiler is hidden
def test_what_a_method_cannot_do_is_said_in_its_row_and_the_others_go_on(evaluate, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    rows = compare(evaluate, BUDGET, methods=("scotch", "gpu"))
    assert rows[0].seconds is None
    assert "apt-get install scotch" in rows[0].why_not
    assert rows[1].seconds is not None


@pytest.mark.usefixtures("compiled")  # before the compiler is hidden
def test_the_benchmark_says_first_what_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(harness, "parallel", lambda cells, workers: [])
    placement.simulated(placement.Config(networks=("rnnlm",)))
    said = "".join(capsys.readouterr())
    assert said.count("\n") == 1
    assert "scotch, mincut are left out: static mapping needs Scotch's program" in said
    assert "apt-get install scotch" in said


def test_a_placement_that_does_not_fit_says_what_is_too_small():
    graph = unrolled(steps=3)
    evaluate = evaluator(graph, module_groups(graph), k80_machine(2, memory_gib=1e-6))
    (row,) = compare(evaluate, BUDGET, methods=("gpu",))
    assert row.seconds is None
    assert row.why_not.startswith("gpu0 (device 1) needs")
