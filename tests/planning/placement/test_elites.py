from __future__ import annotations

import random

import torch

from bow.planning.placement.training import Controller, LearningSettings, Placement, Ranked, elites
from tests.planning.placement.policies import small_policy


def test_the_best_of_all_that_was_drawn_are_kept_each_once() -> None:
    source = random.Random(0)
    found: Ranked = ()
    every: dict[Placement, float] = {}
    for _ in range(10):
        placements = [tuple(source.randrange(3) for _ in range(3)) for _ in range(5)]
        took = [float(sum(each)) if sum(each) < 5 else None for each in placements]
        found = elites(found, placements, took, 4)
        every |= {each: time for each, time in zip(placements, took, strict=True) if time is not None}
        assert [placement for _, placement in found] == sorted(every, key=lambda each: (every[each], each))[:4]


def test_none_are_kept_where_none_are_asked_for() -> None:
    assert elites((), [(0,)], [1.0], 0) == ()


def times(placements: list[Placement]) -> list[float | None]:
    return [1.0 + sum(placement) for placement in placements]


def test_a_controller_makes_its_elites_likelier_and_goes_on_with_them() -> None:
    settings = LearningSettings(samples=6, exploring=0.0, entropy=0.0, elites=1)
    controller = Controller(small_policy(), times, settings)
    best = min(zip(times(list(drawn := controller.step(0).placements)), drawn, strict=True))[1]
    policy = controller.policy
    before = policy.log_probability(torch.tensor([best])).log_probabilities.item()
    for parameter in policy.parameters():
        assert parameter.grad is not None
        parameter.data -= 0.05 * parameter.grad
    assert policy.log_probability(torch.tensor([best])).log_probabilities.item() > before
    state = controller.state()
    assert state["elites"][0] == (times([best])[0], best)
    resumed = Controller(small_policy(), times, settings)
    resumed.load(state)
    assert resumed.state()["elites"] == state["elites"]
