"""Regressions: deterministic, of every family, with one sample as with many."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.costs.climbing import accuracy
from benchmarks.costs.machine import Saturation, Threads, Work, evenly, placements
from benchmarks.costs.regression import ESTIMATORS, Profile, Regression, Sample, computed_events, select_events

MACHINE = Saturation(noise=0.01)
CASES = evenly(placements(68), 2)


def operators(count: int, seed: int) -> dict[str, Work]:
    draws = random.Random(seed)
    kinds = ("aten.convolution.default", "aten.mm.default", "aten.relu.default")
    return {
        str(n): Work(draws.choice(kinds), 10 ** draws.uniform(8, 10), 10 ** draws.uniform(6, 8)) for n in range(count)
    }


def seen(works: dict[str, Work], samples: tuple[Threads, ...]) -> dict[str, Profile]:
    def sample(work: Work, case: Threads) -> Sample:
        seconds = MACHINE.time_s(work.flops, work.bytes_moved, work.kind, case)
        return Sample(seconds, computed_events(work, case, seconds))

    return {name: {case: sample(work, case) for case in samples} for name, work in works.items()}


def times(works: dict[str, Work]) -> dict[str, dict[Threads, float]]:
    return {
        name: {case: MACHINE.time_s(work.flops, work.bytes_moved, work.kind, case, run=1) for case in CASES}
        for name, work in works.items()
    }


def fitted(family: str, num_samples: int, count: int = 40) -> tuple[Regression, dict[str, Profile]]:
    samples = evenly(placements(68), num_samples)
    model = Regression(family, samples)
    model.fit(seen(operators(count, 0), samples), times(operators(count, 0)))
    return model, seen(operators(10, 1), samples)


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", ESTIMATORS)
def test_every_family_predicts_with_one_sample_and_always_the_same(family: str) -> None:
    model, unseen = fitted(family, 1, count=12)
    again, _ = fitted(family, 1, count=12)
    for case in CASES:
        predicted = model.times_s(list(unseen.values()), case)
        assert predicted == again.times_s(list(unseen.values()), case)
        least = min(of[other] for of in times(operators(12, 0)).values() for other in CASES)
        assert all(seconds >= least for seconds in predicted)
        assert len(set(predicted)) > 1


@pytest.mark.parametrize("num_samples", [1, 4, 16])
def test_operators_that_are_alike_are_predicted_well(num_samples: int) -> None:
    model, unseen = fitted("decision tree", num_samples, count=150)
    actual = times(operators(10, 1))
    predicted = [seconds for case in CASES for seconds in model.times_s(list(unseen.values()), case)]
    assert accuracy(predicted, [actual[name][case] for case in CASES for name in unseen]) > 0.6


def test_a_seed_changes_what_draws() -> None:
    samples = evenly(placements(68), 1)
    known, unseen = operators(12, 0), list(seen(operators(10, 1), samples).values())
    predictions = []
    for seed in (0, 1):
        model = Regression("random forest", samples, seed=seed)
        model.fit(seen(known, samples), times(known))
        predictions.append(model.times_s(unseen, CASES[0]))
    assert predictions[0] != predictions[1]


def test_the_events_that_tell_the_time_are_chosen() -> None:
    draws = random.Random(0)
    case = Threads(1)
    telling = [draws.uniform(1.0, 9.0) for _ in range(60)]
    profiles = [
        {case: Sample(1.0, {"instructions": 2.0, "telling": t, "noise": draws.uniform(1.0, 9.0), "constant": 3.0})}
        for t in telling
    ]
    seconds = np.array([[t] for t in telling])
    assert select_events(profiles, [case], seconds, 1) == ("telling",)
    assert select_events(profiles, [case], seconds, 9) == ("constant", "noise", "telling")


def test_events_are_normalised_by_instructions() -> None:
    work = Work("aten.mm.default", 6.4e9, 6.4e8)
    events = computed_events(work, Threads(4, shared=True), 1e-2)
    sample = Sample(1e-2, events).normalised()
    assert "instructions" not in sample
    assert sample["flops"] == pytest.approx(6.4e9 / (6.4e9 / 32 + 6.4e8 / 64))
    assert events["cache_misses"] == events["cache_accesses"] - 2 * 2**20 / 64  # two caches for four threads
    assert computed_events(work, Threads(4), 1e-2)["cache_misses"] == events["cache_accesses"] - 4 * 2**20 / 64
