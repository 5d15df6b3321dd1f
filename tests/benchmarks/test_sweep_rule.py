"""Which mu the sweep decides for, on made-up trainings."""

from __future__ import annotations

import math

from benchmarks.sweep_rule import decide, summarize
from tests.benchmarks.sweeps import sweep, trial


def test_the_widest_range_of_learning_rates_wins() -> None:
    verdict = decide(sweep({0.0: [0.90, 0.98, 0.90], 0.5: [0.97, 0.98, 0.90], 0.9: [0.96, 0.98, 0.50]}))
    assert verdict is not None
    assert verdict.mu == 0.5
    assert [score.usable for score in verdict.scores] == [1, 2, 1]


def test_usable_is_close_to_the_best_of_any_mu() -> None:
    """Three learning rates that agree with each other but not with the best are not usable."""
    verdict = decide(sweep({0.0: [0.96, 0.96, 0.96], 0.5: [0.90, 0.98, 0.90]}))
    assert verdict is not None
    assert verdict.mu == 0.5
    assert [score.usable for score in verdict.scores] == [0, 1]


def test_one_point_below_the_best_is_usable_in_spite_of_rounding() -> None:
    (record,) = summarize(sweep({0.5: [0.98, 0.97, 0.9699]}))
    assert record.usable == (0.1, 0.2)


def test_a_mu_that_fails_in_one_case_is_not_admitted() -> None:
    trials = [
        *sweep({0.0: [0.98, 0.98, 0.98, 0.98], 0.5: [0.98, 0.5, 0.5, 0.5]}, learners=2),
        *sweep({0.0: [0.90, 0.90, 0.90, 0.90], 0.5: [0.98, 0.5, 0.5, 0.5]}, learners=4),
    ]
    verdict = decide(trials)
    assert verdict is not None
    assert verdict.mu == 0.5
    assert [score.admitted for score in verdict.scores] == [False, True]
    assert "not admitted" in str(verdict)


def test_ties_go_to_fewer_epochs_and_then_to_the_smaller_mu() -> None:
    slow = sweep({0.0: [0.98, 0.98]}, reaches_goal_in=4)
    fast = sweep({0.5: [0.98, 0.98], 0.9: [0.98, 0.98]}, reaches_goal_in=2)
    verdict = decide([*fast, *slow])
    assert verdict is not None
    assert verdict.mu == 0.5
    assert [score.epochs_to_goal for score in verdict.scores] == [4, 2, 2]


def test_accuracies_are_medians_over_seeds_of_medians_over_the_last_epochs() -> None:
    trials = [trial(0.5, 0.1, accuracy, seed=seed) for seed, accuracy in enumerate([0.2, 0.96, 0.98])]
    (record,) = summarize(trials)
    assert record.best_accuracy == 0.96
    late = trial(0.5, 0.1, 0.98, reaches_goal_in=5)  # two of the last three epochs
    assert late.accuracy == 0.98
    assert trial(0.5, 0.1, 0.98, reaches_goal_in=6).accuracy == 0.5


def test_a_training_that_diverged_counts_as_no_accuracy() -> None:
    trials = [trial(0.5, 0.1, 0.98, diverged=True), trial(0.5, 0.2, 0.60)]
    (record,) = summarize(trials)
    assert (record.best_lr, record.best_accuracy) == (0.2, 0.60)


def test_one_learner_has_no_say() -> None:
    single = sweep({None: [0.99, 0.99]}, learners=1)
    assert decide(single) is None
    verdict = decide([*single, *sweep({0.0: [0.98]}, learners=2)])
    assert verdict is not None
    assert verdict.mu == 0.0
    assert [record.case.learners for record in verdict.records] == [1, 2]


def test_a_goal_that_is_never_reached_is_none_in_json() -> None:
    verdict = decide(sweep({0.0: [0.7], 0.5: [0.6]}))
    assert verdict is not None
    assert math.isinf(verdict.scores[0].epochs_to_goal)
    values = verdict.as_dict()
    assert values["scores"][0]["epochs_to_goal"] is None
    assert values["cases"][0]["epochs_to_goal"] is None
