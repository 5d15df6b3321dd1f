from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bow.errors import ScheduleError, SettingError
from bow.planning.placement import training
from bow.planning.placement.groups import SearchBudget
from bow.planning.placement.methods import METHODS
from bow.planning.placement.policy import PlacementPolicy
from bow.planning.placement.training import (
    BestPlacement,
    Controller,
    LearnedPlacement,
    LearningSettings,
    Placement,
    SampledPlacements,
    TrainingState,
    train_policy,
)
from tests.planning.placement.placed_steps import evaluator, unrolled
from tests.planning.placement.policies import SMALL, chain, small_policy, sums, weights

QUICK = LearningSettings(samples=4, learning_rate=0.02, entropy=0.05, least_entropy=0.0, exploring=0.0, elites=2)
THOROUGH = replace(QUICK, samples=8, exploring=0.5, entropy=0.1)


def trained(updates: int = 12, evaluate: Any = sums, **arguments: Any) -> LearnedPlacement:
    arguments = {"settings": QUICK, "sizes": SMALL, **arguments}
    return train_policy(chain(), evaluate, updates=updates, **arguments)


def ending(call: int, error: BaseException) -> Callable[[list[Placement]], list[float | None]]:
    """An evaluation that raises this at a call."""
    calls = itertools.count(1)

    def evaluate(placements: list[Placement]) -> list[float | None]:
        if next(calls) == call:
            raise error
        return sums(placements)

    return evaluate


def test_the_policy_learns_the_fastest_placement() -> None:
    def evaluate(placements: list[Placement]) -> list[float]:
        return [1.0 + sum(device != number % 3 for number, device in enumerate(each)) for each in placements]

    found = train_policy(chain(8, 3), evaluate, updates=150, settings=THOROUGH, sizes=SMALL)
    assert found.greedy == (0, 1, 2, 0, 1, 2, 0, 1)
    assert (found.best.placement, found.best.time_s) == (found.greedy, 1.0)


def test_the_same_seed_gives_the_same_training_and_another_one_does_not() -> None:
    first, same, other = trained(), trained(), trained(seed=1)
    assert weights(first.policy).equal(weights(same.policy))
    assert (first.best, first.samples) == (same.best, same.samples)
    assert not weights(first.policy).equal(weights(other.policy))


def test_an_evaluation_that_breaks_off_tells_the_best() -> None:
    with pytest.raises(OSError, match="on fire") as caught:
        trained(12, ending(6, OSError("the machine is on fire")))
    best = trained(5).best
    assert caught.value.__notes__ == [
        f"the best placement found before the error takes {best.time_s:.6g} s: {best.placement}"
    ]


def test_ctrl_c_keeps_the_best() -> None:
    found = trained(12, ending(4, KeyboardInterrupt()))
    assert found.updates == 3
    assert found.best.time_s == sums([found.best.placement])[0]


def test_who_watches_is_told_after_each_update_and_may_end_it() -> None:
    told: list[tuple[int, int]] = []
    bests: list[BestPlacement | None] = []
    entropies: list[float] = []

    def watch(state: TrainingState, batch: SampledPlacements) -> bool:
        told.append((state.updater.updates, state.samples))
        bests.append(state.best)
        entropies.append(batch.entropy)
        return state.updater.updates < 3

    found = trained(12, watch=watch)
    assert told == [(1, 4), (2, 8), (3, 12)]
    assert bests[-1] == found.best
    assert all(0 < each <= math.log(3) + 1e-6 for each in entropies)


def test_the_best_is_the_best_of_all_that_was_drawn() -> None:
    drawn: list[tuple[Placement, float | None]] = []

    def watch(_: TrainingState, batch: SampledPlacements) -> None:
        drawn.extend(zip(batch.placements, batch.times, strict=True))

    found = trained(20, watch=watch)
    times = [time for _, time in drawn if time is not None]
    assert found.best.time_s == min(times)
    assert drawn[found.best.sample - 1] == (found.best.placement, found.best.time_s)


def test_the_time_ends_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    assert trained(1000, budget_s=10).updates < 10


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -1.0, 0.0])
def test_failures_of_any_sort_leave_the_parameters_finite(bad: float | None) -> None:
    def evaluate(placements: list[Placement]) -> list[float | None]:
        return [bad if sum(each) % 2 else 1.0 + sum(each) for each in placements]

    found = trained(20, evaluate)
    assert weights(found.policy).isfinite().all()
    assert sum(found.best.placement) % 2 == 0


def test_masked_failures_have_no_influence_later() -> None:
    """After the first update everything fails, which is masked: the parameters stay as they are."""
    calls = 0

    def evaluate(placements: list[Placement]) -> list[float | None]:
        nonlocal calls
        calls += 1
        return [1.0 + sum(each) if calls == 1 else None for each in placements]

    settings = replace(QUICK, mask_failures_after=1, elites=0, entropy=0.0)
    late = trained(6, evaluate, settings=settings)
    calls = 0
    early = trained(1, evaluate, settings=settings)
    assert weights(late.policy).equal(weights(early.policy))
    assert not weights(early.policy).equal(weights(small_policy()))


def check_gradient_is_that_of(best: Placement, policy: PlacementPolicy) -> None:
    """What the policy has learned is to make this placement likelier, and nothing else."""
    gradients = [each.grad for each in policy.parameters()]
    policy.zero_grad()
    (-policy.log_probability(torch.tensor([best])).log_probabilities.mean()).backward()
    for found, wanted in zip(gradients, (each.grad for each in policy.parameters()), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("exploring", [0.0, 0.5])
def test_explorers_find_what_a_policy_that_is_sure_would_never_draw(exploring: float) -> None:
    """They alone do, and the policy learns of them what is best so far, and nothing else."""
    policy = small_policy()
    with torch.no_grad():
        policy.choice.bias[1] = 100.0
        policy.choice.bias[0] = 50.0
    settings = replace(QUICK, samples=30, elites=1, entropy=0.0, exploring=exploring)
    controller = Controller(policy, lambda placements: [1.0 + sum(each) for each in placements], settings)
    batch = controller.step(0)
    assert set(batch.placements[: 30 - settings.explorers]) == {(1, 1, 1, 1)}
    assert len(set(batch.placements)) == 1 or exploring
    best = min(batch.placements, key=lambda each: (sum(each), each))
    assert (best != (1, 1, 1, 1)) == bool(exploring)
    check_gradient_is_that_of(best, policy)


def test_at_the_end_the_best_placement_alone_is_learnt_again_and_entropy_is_worth_nothing() -> None:
    settings = replace(QUICK, samples=6, exploring=1.0, elites=5, entropy=0.3, least_entropy=5.0)
    assert [settings.unsettled(left) for left in (1.0, 0.2, 0.1, 0.0)] == [1.0, 1.0, 0.5, 0.0]
    policy = small_policy()
    controller = Controller(policy, lambda placements: [1.0 + sum(each) for each in placements], settings)
    batch = controller.step(0, left=0.0)
    check_gradient_is_that_of(min(batch.placements, key=lambda each: (sum(each), each)), policy)


def test_where_nothing_fits_it_is_said() -> None:
    with pytest.raises(ScheduleError, match="none of 12 sampled placements"):
        trained(3, lambda placements: [None] * len(placements))


def test_a_budget_of_no_placement_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"no placement was sampled .* more proposals"):
        METHODS["learned"](evaluator(unrolled(steps=2)), SearchBudget(placements=0), 0, lambda message: None)


def test_every_placement_needs_a_time() -> None:
    with pytest.raises(SettingError, match="evaluate returned 1 times for 4 placements"):
        trained(3, lambda placements: [1.0])
