"""What benchmark `schedule` makes of times: who is best, by how much, what ideas bring, and whether that is enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import schedule_report
from benchmarks.quartiles import Quartiles
from benchmarks.schedule import aims
from benchmarks.schedule_effects import AT_ONCE, CO_RUNNING, CRITICAL, EXECUTORS, IDEAS, STAY, effects
from benchmarks.schedule_races import Races, fastest


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20))
def test_quartiles_are_those_of_numpy(values: list[float]) -> None:
    found = Quartiles.of(values)
    assert [found.low, found.median, found.high] == pytest.approx(np.percentile(values, [25, 50, 75]), abs=1e-9)
    assert found.n == len(values)
    assert found.scaled(2.0).as_dict(3) == {
        **{name: round(2 * getattr(found, name), 3) for name in ("median", "low", "high")},
        "n": found.n,
    }


def races(**changes: Any) -> Races:
    race: dict[str, tuple[float, ...]] = {
        "PyTorch, 1 thread": (4.0, 4.0),
        "PyTorch, 2 threads": (9.0, 9.0),
        "sequential, 1 thread": (3.0, 3.0),
        "sequential, 2 threads": (3.2, 3.2),
        "first come, 1 executor of 1 thread": (2.9, 2.9),
        "first come, 2 executors of 1 thread": (2.8, 2.8),
        "critical path, 2 executors of 1 thread": (2.0, 2.0),
    }
    settings: dict[str, Any] = {
        "race": race,
        "sequential": [name for name in race if name.startswith(("PyTorch", "sequential"))],
        "side_by_side": [name for name in race if "2 executors" in name],
        "uniform": [name for name in race if name.startswith("first come")],
        "choice": "sequential, 1 thread",
    }
    return Races(**{**settings, **changes})


def test_the_best_of_every_kind_are_timed_again() -> None:
    assert races().finalists == [
        "sequential, 1 thread",
        "sequential, 2 threads",  # close to the best
        "PyTorch, 1 thread",  # the best of PyTorch, however slow
        "critical path, 2 executors of 1 thread",
        "first come, 2 executors of 1 thread",  # what a user could set by hand
    ]
    assert races(choice="PyTorch, 2 threads").finalists[-1] == "PyTorch, 2 threads"


def test_one_executor_that_takes_what_is_ready_is_neither_sequential_nor_side_by_side() -> None:
    race = {**races().race, "first come, 1 executor of 1 thread": (0.1, 0.1)}
    made = races(race=race)
    assert made.manual == "first come, 1 executor of 1 thread"
    assert made.best == made.best_side_by_side == "critical path, 2 executors of 1 thread"


def test_policies_are_chosen_by_the_race_and_judged_by_the_final() -> None:
    final = {
        "PyTorch, 1 thread": (5.0, 5.0, 5.0),
        "sequential, 1 thread": (4.0, 4.0, 4.0),
        "sequential, 2 threads": (2.0, 8.0, 2.0),
        "critical path, 2 executors of 1 thread": (1.0, 2.0, 2.0),
        "first come, 2 executors of 1 thread": (0.1, 0.1, 0.1),
    }
    made = races(final=final)
    assert made.best_sequential == "sequential, 2 threads"
    found = made.as_dict()["policies"]
    assert found["best"]["name"] == "critical path, 2 executors of 1 thread"
    assert found["best"]["speed_up"] == {"median": 2.0, "low": 1.5, "high": 3.0, "n": 3}
    assert found["best"]["over_pytorch"]["median"] == 2.5
    assert found["choice"]["speed_up"]["median"] == 0.5
    assert found["best"]["over_native"] == found["best"]["speed_up"]


def test_a_median_decides_who_is_fastest() -> None:
    assert fastest({"a": (1.0, 9.0, 9.0), "b": (5.0, 5.0, 5.0), "c": (0.1,)}, ["a", "b"]) == "b"


def made_up_race() -> dict[str, tuple[float, ...]]:
    return {
        "PyTorch, 1 thread": (6.0, 6.0),
        "sequential, 1 thread": (5.0, 5.0),
        "first come, 2 executors of 1 thread": (4.0, 8.0),
        "first come in Python, 2 executors of 1 thread": (8.0, 16.0),
        "critical path, 2 executors of 1 thread": (2.0, 4.0),
        "critical path, small at once, 2 executors of 1 thread": (1.0, 2.0),
        "critical path, stay, 2 executors of 1 thread": (2.0, 4.0),
        "critical path, fixed order, 2 executors of 1 thread": (2.5, 5.0),
        "strategy 1": (5.0, 5.0),
        "strategy 2": (4.0, 4.0),
        "strategy 3": (2.0, 2.0),
    }


def test_an_idea_is_held_against_the_same_without_it() -> None:
    found = {idea: own["median"] for idea, own in effects(made_up_race(), cores=2).items()}
    assert list(found) == list(IDEAS)
    assert found[EXECUTORS] == 2.0
    assert found[CRITICAL] == 2.0
    assert found[AT_ONCE] == 2.0
    assert found[STAY] == 0.5  # over small at once, which it has too
    assert found[CO_RUNNING] == 2.0


def test_ideas_are_compared_on_the_executors_that_suit_critical_path_first() -> None:
    race = made_up_race()
    for name in list(race):
        if "2 executors of 1 thread" in name and "Python" not in name:
            slower = name.replace("2 executors of 1 thread", "2 executors of 2 threads")
            race[slower] = tuple(3 * seconds for seconds in race[name])
    race["first come, 2 executors of 2 threads"] = (1.0, 1.0)
    assert effects(race, cores=2)[CRITICAL]["median"] == 2.0


def network(best: float, choice: float) -> dict[str, Any]:
    return {"policies": {"best": {"speed_up": {"median": best}}, "choice": {"speed_up": {"median": choice}}}}


def cost(nanoseconds: float) -> dict[str, Any]:
    return {"added_ns": {"by priority": {"median": nanoseconds}}}


@pytest.mark.parametrize(
    ("bests", "choices", "nanoseconds", "met"),
    [
        ([1.08, 1.2, 1.5, 1.0], [0.98, 1.2, 1.0, 1.0], [10.0, 1000.0], [True, True, True]),
        ([1.08, 1.2, 1.07, 1.0], [1.0] * 4, [10.0], [False, True, True]),
        ([1.1] * 4, [1.0, 1.0, 1.0, 0.979], [1.0, 1000.1], [True, False, False]),
        ([1.1], [1.0], [1.0], [True, True, True]),  # of one network, one
    ],
)
def test_aims_are_met_at_their_limits(
    bests: list[float], choices: list[float], nanoseconds: list[float], met: list[bool]
) -> None:
    pairs_of = zip(bests, choices, strict=True)
    names = ["lstm", "pathnet", "dcgan", "alexnet"]
    found = aims({name: network(*pair) for name, pair in zip(names, pairs_of, strict=False)}, [*map(cost, nanoseconds)])
    assert [aim["is_met"] for aim in found.values()] == met
    lines = list(schedule_report.verdicts(found))
    assert [line.startswith("Met: ") for line in lines] == met
    assert all(line.endswith(".") for line in lines)


def test_missed_aims_name_the_networks() -> None:
    found = aims({"lstm": network(1.5, 0.9), "dcgan": network(1.0, 1.0)}, [cost(20.0)])
    faster, slower, _ = schedule_report.verdicts(found)
    assert "on 1 network (LSTM); the aim is 2" in faster
    assert "but on LSTM; the least is 0.900" in slower
