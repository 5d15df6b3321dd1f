"""What follows from measurements, on made-up ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.group import Group, geometric_mean
from benchmarks.line_up import Lane
from benchmarks.measure import Spread
from tests.benchmarks.groups import BOW_ALONE, GROUP, NOBODY, PYTORCH_ALONE


def test_the_baseline_is_plain_pytorch_with_the_better_median() -> None:
    assert GROUP.baseline is not None
    assert (GROUP.baseline.implementation, GROUP.baseline.threads) == ("pytorch", 1)


def test_the_best_of_bow_meets_the_best_of_plain_and_compiled_pytorch() -> None:
    best = GROUP.best_of_bow
    assert best is not None
    assert (best.implementation, best.learners) == ("fused", 8)
    assert GROUP.best_of_pytorch is not None
    assert GROUP.best_of_pytorch.short == "compiled_step, 2 threads"


def test_the_contest_is_of_the_final_and_not_of_the_race_that_chose_the_two() -> None:
    assert GROUP.contest == Spread(2.5, 2.0, 3.0, 3)
    pytorch, bow = GROUP.finalists
    assert pytorch is not None
    assert bow is not None
    assert (pytorch.short, pytorch.speed.median) == ("compiled_step, 2 threads", 200.0)
    assert (bow.short, bow.speed.median) == ("fused, 8 learners", 500.0)


def test_ratios_to_plain_pytorch_are_taken_repeat_by_repeat() -> None:
    best = GROUP.best_of_bow
    assert best is not None
    assert GROUP.ratio(best) == Spread(8.0, 5.0, 9.0, 3)


def test_the_best_is_chosen_by_the_median_and_not_by_the_best_repeat() -> None:
    lucky = Lane("streams", 1, 2, rates=(1.0, 9999.0, 1.0))
    assert replace(GROUP, lanes=(*GROUP.lanes, lucky)).best_of_bow == GROUP.best_of_bow


def test_the_better_number_of_threads_speaks_for_a_setting() -> None:
    best = GROUP.best(["eager"], 8)
    assert best is not None
    assert best.threads == 2
    assert GROUP.best(["fused"], 4) is None


def test_the_gain_of_a_second_learner_is_over_one_learner_on_one_thread() -> None:
    assert GROUP.gain("graph") == Spread(2.0, 1.5, 2.0, 3)
    assert GROUP.gain("graph+compiled") is None  # two learners did not run


def test_the_geometric_mean_is_of_the_medians() -> None:
    slower = replace(GROUP, final=((250.0,) * 3, (100.0,) * 3))
    assert slower.contest == Spread(0.4, 0.4, 0.4, 3)
    assert geometric_mean([GROUP, slower]) == pytest.approx(1.0)


@pytest.mark.parametrize("group", [PYTORCH_ALONE, BOW_ALONE, NOBODY])
def test_where_one_side_is_missing_there_is_no_contest(group: Group) -> None:
    assert group.contest is None
    assert group.contest_dict()["ratio"] is None
    assert geometric_mean([group]) is None
    assert geometric_mean([GROUP, group]) == pytest.approx(2.5)


def test_without_plain_pytorch_there_are_no_ratios_to_it() -> None:
    assert BOW_ALONE.baseline is None
    assert [values["ratio"] for values in BOW_ALONE.as_dict()["contestants"]] == [None, None]


def test_the_json_has_every_contestant_with_its_spread() -> None:
    values = GROUP.as_dict()
    assert len(values["contestants"]) == len(GROUP.lanes)
    assert values["contestants"][7] == {
        "implementation": "fused",
        "learners": 8,
        "threads": 1,
        "samples_per_s": {"median": 900.0, "low": 800.0, "high": 1000.0, "n": 3},
        "ratio": {"median": 8.0, "low": 5.0, "high": 9.0, "n": 3},
        "first_call_s": 25.0,
    }


def test_the_json_has_the_contest_and_the_gains() -> None:
    assert GROUP.contest_dict() == {
        "model": "mlp",
        "batch_size": 4,
        "pytorch": {"setting": "compiled_step, 2 threads", "samples_per_s": 200.0},
        "bow": {"setting": "fused, 8 learners", "samples_per_s": 500.0},
        "ratio": {"median": 2.5, "low": 2.0, "high": 3.0, "n": 3},
    }
    assert GROUP.gains_dict() == {
        "model": "mlp",
        "batch_size": 4,
        "graph": {"median": 2.0, "low": 1.5, "high": 2.0, "n": 3},
        "graph+compiled": None,
    }
    assert PYTORCH_ALONE.contest_dict()["bow"] is None
