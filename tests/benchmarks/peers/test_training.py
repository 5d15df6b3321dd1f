"""What follows from the curve of a training."""

from __future__ import annotations

import json

import pytest

from benchmarks.peers.training import Training
from tests.benchmarks.peers.made_up import diverged, failed, not_reached, training

ALL = [training("bow", rest_s=2.0, ran_as="graph, 2 learners"), not_reached("pytorch"), diverged("a"), failed("b")]


def test_time_is_samples_at_a_speed_and_a_rest() -> None:
    made = training(looks=4, throughput=10.0, rest_s=7.0)
    assert made.time_s == pytest.approx(47.0)
    assert made.throughput == pytest.approx(10.0)
    assert made.rest_s == pytest.approx(7.0)
    assert made.samples == 400


def test_a_single_evaluation_says_nothing_about_the_rest() -> None:
    made = training(looks=1, throughput=10.0, rest_s=10.0)
    assert made.throughput == pytest.approx(5.0)
    assert made.rest_s == pytest.approx(0.0)


@pytest.mark.parametrize("made", ALL, ids=lambda made: made.ending)
def test_a_training_survives_json(made: Training) -> None:
    again = Training.from_dict(json.loads(json.dumps(made.as_dict(), allow_nan=False)))
    assert (again.choice, again.seed, again.ending, again.ran_as, again.why) == (
        made.choice,
        made.seed,
        made.ending,
        made.ran_as,
        made.why,
    )
    assert again.samples == made.samples
    assert again.time_s == pytest.approx(made.time_s)


def test_the_line_about_a_training_says_how_it_ended() -> None:
    lines = [made.summary(0.89) for made in ALL]
    assert "[graph, 2 learners]: 89.0% reached after 42.0 s and 400 samples, 10 samples/s, rest 2.0 s" in lines[0]
    assert "epochs used up, best 85.0% after" in lines[1]
    assert "diverged, best 10.0% after" in lines[2]
    assert lines[3].endswith("failed, RuntimeError: no compiler")


def test_the_rest_of_a_fast_beginning_is_below_0() -> None:
    assert training(rest_s=-3.0).rest_s == pytest.approx(-3.0)
