"""Whether the claim holds, and why, on made-up trainings."""

from __future__ import annotations

import pytest

from benchmarks.peers.training import EPOCHS, Training
from benchmarks.peers.verdict import decide
from tests.benchmarks.peers.made_up import diverged, failed, not_reached, training

SEEDS = (1, 2, 3)
PLAIN = [training("pytorch", seed=seed, looks=10, throughput=10.0) for seed in SEEDS]  # 100 s each


def test_the_ratio_is_taken_seed_by_seed_and_its_median_decides() -> None:
    bows = [training("bow", seed=seed, looks=looks, throughput=20.0) for seed, looks in ((1, 10), (2, 14), (3, 18))]
    verdict = decide([*PLAIN, *bows])
    assert [round(duel.ratio, 3) for duel in verdict.duels] == [0.5, 0.7, 0.9]
    assert verdict.is_met is True
    assert str(verdict) == (
        "The claim holds: bow takes 0.70 (0.50 to 0.90, n = 3) of the time of plain PyTorch. Of the time of the "
        "fastest peer, PyTorch with batch 16 and lr 0.01, it takes 0.70 (0.50 to 0.90, n = 3)."
    )
    slower = [training("bow", seed=1, looks=15, throughput=20.0), *bows[1:]]
    assert decide([*PLAIN, *slower]).is_met is False


def test_the_parts_add_up() -> None:
    bow = training("bow", looks=12, throughput=20.0, rest_s=15.0)
    (duel,) = decide([PLAIN[0], bow]).duels
    assert duel.samples == pytest.approx(1.2)
    assert duel.throughput == pytest.approx(2.0)
    assert duel.rest == pytest.approx(0.15)
    assert duel.ratio == pytest.approx(duel.samples / duel.throughput + duel.rest)


def test_a_claim_that_does_not_hold_is_explained_by_its_parts() -> None:
    verdict = decide([*PLAIN, *(training("bow", seed=seed, looks=12, throughput=20.0, rest_s=15.0) for seed in SEEDS)])
    assert verdict.is_met is False
    assert verdict.explanation() == (
        "With seed 2, that of the median, bow sees 1.20 times the samples of plain PyTorch until the target, at 2.00 "
        "times its throughput: 1.20 / 2.00 = 0.60. The rest (15.0 s, against 0.0 s) makes it 0.75. With as many "
        "samples as plain PyTorch it would be 0.65, and with no rest 0.60; 0.7 would take 1.10 times the samples at "
        "this throughput."
    )


def test_a_rest_that_alone_takes_too_long_is_named() -> None:
    verdict = decide([PLAIN[0], training("bow", looks=12, throughput=20.0, rest_s=80.0)])
    assert verdict.explanation().endswith("no number of samples would make it 0.7 with this rest.")


def test_a_target_that_is_not_reached_with_every_seed_fails_the_claim() -> None:
    fast = [training("bow", seed=seed, looks=2, throughput=20.0) for seed in (1, 2)]
    verdict = decide([*PLAIN, *fast, not_reached("bow", seed=3)])
    assert verdict.ratio is not None
    assert verdict.ratio["median"] == pytest.approx(0.1)
    assert verdict.is_met is False
    assert "; bow did not reach the target with seed 3." in str(verdict)
    assert verdict.as_dict()["missed"] == [["bow", 3]]


@pytest.mark.parametrize("miss", [not_reached, diverged, failed])
def test_where_nobody_reached_the_target_there_is_no_ratio(miss: object) -> None:
    verdict = decide([*PLAIN, *(miss("bow", seed=seed) for seed in SEEDS)])  # type: ignore[operator]
    assert verdict.is_met is False
    assert verdict.ratio is None
    assert str(verdict) == "The claim does not hold: with no seed did both reach the target."
    assert verdict.explanation() == ""
    assert verdict.as_dict()["ratio"] is None


def test_without_one_of_the_two_there_is_no_verdict() -> None:
    assert decide(PLAIN).is_met is None
    assert decide([]).is_met is None
    assert str(decide(PLAIN)) == "No verdict: bow and plain PyTorch did not both take part."


@pytest.mark.parametrize("bow", [training("bow"), not_reached("bow")])
def test_fewer_than_three_seeds_are_no_verdict(bow: Training) -> None:
    verdict = decide([PLAIN[0], bow])
    assert verdict.is_met is None
    assert str(verdict).startswith("No verdict, for which 3 seeds are needed (there is 1): ")


def test_each_side_has_its_setting_with_the_shorter_median_time() -> None:
    lucky = [training("bow", seed=seed, looks=looks, lr=0.04) for seed, looks in zip(SEEDS, (2, 7, 8), strict=True)]
    steady = [training("bow", seed=seed, looks=6, lr=0.08) for seed in SEEDS]
    verdict = decide([*PLAIN, *lucky, *steady])
    assert {duel.bow.choice.lr for duel in verdict.duels} == {0.08}
    assert verdict.as_dict()["settings"]["bow"]["lr"] == 0.08


def test_a_setting_that_misses_the_target_with_most_seeds_does_not_represent_its_side() -> None:
    once = [
        training("bow", seed=1, looks=2, lr=0.08),
        *(training("bow", seed=seed, ending=EPOCHS, best=0.85, lr=0.08) for seed in (2, 3)),
    ]
    steady = [training("bow", seed=seed, looks=6) for seed in SEEDS]
    verdict = decide([*PLAIN, *once, *steady])
    assert {duel.bow.choice.lr for duel in verdict.duels} == {0.01}
    assert verdict.is_met is True


def test_the_fastest_of_all_peers_is_named_too() -> None:
    compiled = [training("compile", seed=seed, looks=8, lr=0.02) for seed in SEEDS]
    goodput = [training("bow_goodput", seed=seed, looks=2) for seed in SEEDS]
    bows = [training("bow", seed=seed, looks=6) for seed in SEEDS]
    verdict = decide([*PLAIN, *compiled, *bows, *goodput])
    assert verdict.ratio is not None
    assert verdict.ratio["median"] == pytest.approx(0.6)
    assert str(verdict).endswith(
        "Of the time of the fastest peer, torch.compile, model with batch 16 and lr 0.02, it takes 0.75 (0.75 to 0.75, "
        "n = 3)."
    )
    peer = verdict.as_dict()["best_peer"]
    assert (peer["contestant"], peer["ratio"]["median"]) == ("compile", 0.75)
