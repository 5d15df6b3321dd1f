import math

import pytest
import torch

from bow.errors import SettingError
from bow.planning.placement.reinforce import LearningSettings, Updater, flat_gradients, set_gradients
from tests.planning.placement.policies import small_policy


def parameters(policy: torch.nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in policy.parameters()])


def test_an_update_is_adams_with_a_clipped_gradient() -> None:
    policy, twin = small_policy(), small_policy()
    updater = Updater(policy, LearningSettings(learning_rate=0.1, decay_after=1, decay_every=1, decay=0.5))
    adam = torch.optim.Adam(twin.parameters())
    gradients = torch.randn(len(parameters(policy)), generator=torch.Generator().manual_seed(0))
    for rate in (0.1, 0.1, 0.05, 0.025):
        set_gradients(policy, gradients)
        assert updater.update()
        set_gradients(twin, gradients / gradients.norm())
        adam.param_groups[0]["lr"] = rate
        adam.step()
        torch.testing.assert_close(parameters(policy), parameters(twin))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_change_nothing_and_are_counted(value: float) -> None:
    policy = small_policy()
    updater, before = Updater(policy, LearningSettings()), parameters(policy)
    gradients = torch.zeros(len(before))
    gradients[3] = value
    set_gradients(policy, gradients)
    assert not updater.update()
    assert (updater.updates, updater.skipped) == (1, 1)
    assert parameters(policy).equal(before)


def test_without_anything_to_learn_momentum_does_not_move_the_parameters() -> None:
    policy = small_policy()
    updater = Updater(policy, LearningSettings())
    set_gradients(policy, torch.ones(len(parameters(policy))))
    updater.update()
    before = parameters(policy)
    set_gradients(policy, torch.zeros(len(before)))
    assert not updater.update()
    assert parameters(policy).equal(before)
    assert (updater.updates, updater.skipped) == (2, 0)


def test_gradients_travel_as_one_vector() -> None:
    policy = small_policy()
    gradients = torch.arange(len(parameters(policy)), dtype=torch.float32)
    set_gradients(policy, gradients)
    assert flat_gradients(policy).equal(gradients)
    policy.zero_grad()
    assert flat_gradients(policy).equal(torch.zeros_like(gradients))


def test_the_learning_rate_decays_in_steps_after_a_while() -> None:
    settings = LearningSettings()
    rates = [settings.rate(update) for update in (0, 449, 450, 499, 500)]
    assert rates == pytest.approx([0.1, 0.1, 0.095, 0.095, 0.1 * 0.95**2])


def test_exploration_fades() -> None:
    settings = LearningSettings(explore_until=100, noise=0.5, entropy=0.3, entropy_after=0.1)
    assert [settings.noise_at(update) for update in (0, 50, 100, 500)] == [0.5, 0.25, 0.0, 0.0]
    assert [settings.entropy_at(update, 1.0) for update in (0, 50, 100)] == pytest.approx([0.3, 0.2, 0.1])
    assert LearningSettings(explore_until=0).noise_at(0) == 0.0


def test_entropy_is_worth_more_where_there_is_little_of_it() -> None:
    settings = LearningSettings(entropy=0.3, entropy_after=0.3, least_entropy=4.0)
    assert [settings.entropy_at(0, nats) for nats in (9.0, 4.0, 2.0, 0.5)] == pytest.approx([0.3, 0.3, 0.6, 2.4])
    assert math.isfinite(settings.entropy_at(0, 0.0))


def test_short_trainings_scale_the_counts_and_nothing_else() -> None:
    scaled = LearningSettings(learning_rate=0.2).scaled(200)
    counts = (scaled.decay_every, scaled.decay_after, scaled.mask_failures_after, scaled.explore_until)
    assert counts == (1, 8, 100, 15)
    assert (scaled.learning_rate, scaled.samples) == (0.2, LearningSettings().samples)
    assert LearningSettings().scaled(50_000) == LearningSettings()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"learning_rate": math.nan}, "learning_rate must be finite and above 0"),
        ({"entropy": -1.0}, "entropy must be finite and at least 0"),
        ({"decay": 1.5}, "decay must be above 0 and at most 1"),
        ({"baseline_decay": 1.0}, "baseline_decay must be at least 0 and below 1"),
        ({"failing_s": 0.0}, "failing_s must be finite and above 0"),
    ],
)
def test_settings_are_checked(fields: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        LearningSettings(**fields)  # type: ignore[arg-type]
