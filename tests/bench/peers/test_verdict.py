"""Whether the claim holds, and why, on made-up trainings."""

from __future__ import annotations

import pytest

from bow.bench.peers.verdict import decide
from tests.bench.peers.made_up import diverged, failed, not_reached, training

PLAIN = [training("pytorch", seed=seed, looks=10, throughput=10.0) for seed in (1, 2, 3)]  # 100 s each


def test_the_ratio_is_taken_seed_by_seed_and_its_median_decides() -> None:
    bows = [training("bow", seed=seed, looks=looks, throughput=20.0) for seed, looks in ((1, 10), (2, 14), (3, 18))]
    verdict = decide([*PLAIN, *bows])
    assert [round(duel.ratio, 3) for duel in verdict.duels] == [0.5, 0.7, 0.9]
    assert verdict.is_met is True
    assert str(verdict) == "The claim holds: bow takes 0.70 (0.50 to 0.90, n = 3) of the time of plain PyTorch."
    slower = [training("bow", seed=1, looks=15, throughput=20.0), *bows[1:]]
    assert decide([*PLAIN, *slower]).is_met is False


def test_the_parts_add_up() -> None:
    bow = training("bow", looks=12, throughput=20.0, setup_s=15.0)
    (duel,) = decide([PLAIN[0], bow]).duels
    assert duel.samples == pytest.approx(1.2)
    assert duel.throughput == pytest.approx(2.0)
    assert duel.setup == pytest.approx(0.15)
    assert duel.ratio == pytest.approx(duel.samples / duel.throughput + duel.setup)


def test_a_claim_that_does_not_hold_is_explained_by_its_parts() -> None:
    verdict = decide([PLAIN[0], training("bow", looks=12, throughput=20.0, setup_s=15.0)])
    assert verdict.is_met is False
    assert verdict.explanation() == (
        "With seed 1, that of the median, bow sees 1.20 times the samples of plain PyTorch until the target, at 2.00 "
        "times its throughput: 1.20 / 2.00 = 0.60. Setting up (15.0 s, against 0.0 s) makes it 0.75. With as many "
        "samples as plain PyTorch it would be 0.65, and with no set-up 0.60; 0.7 would take 1.10 times the samples at "
        "this throughput."
    )


def test_a_set_up_that_alone_takes_too_long_is_named() -> None:
    verdict = decide([PLAIN[0], training("bow", looks=12, throughput=20.0, setup_s=80.0)])
    assert verdict.explanation().endswith("no number of samples would make it 0.7 with this set-up.")


def test_a_target_that_is_not_reached_with_every_seed_fails_the_claim() -> None:
    fast = [training("bow", seed=seed, looks=2, throughput=20.0) for seed in (1, 2)]
    verdict = decide([*PLAIN, *fast, not_reached("bow", seed=3)])
    assert verdict.ratio is not None
    assert verdict.ratio.median == pytest.approx(0.1)
    assert verdict.is_met is False
    assert str(verdict).endswith("bow did not reach the target with seed 3.")
    assert verdict.as_dict()["missed"] == [["bow", 3]]


@pytest.mark.parametrize("miss", [not_reached, diverged, failed])
def test_where_nobody_reached_the_target_there_is_no_ratio(miss: object) -> None:
    verdict = decide([PLAIN[0], miss("bow")])  # type: ignore[operator]
    assert verdict.is_met is False
    assert verdict.ratio is None
    assert str(verdict) == "The claim does not hold: with no seed did both reach the target."
    assert verdict.explanation() == ""
    assert verdict.as_dict()["ratio"] is None


def test_without_one_of_the_two_there_is_no_verdict() -> None:
    assert decide(PLAIN).is_met is None
    assert decide([]).is_met is None
    assert str(decide(PLAIN)) == "No verdict: bow and plain PyTorch did not both take part."
