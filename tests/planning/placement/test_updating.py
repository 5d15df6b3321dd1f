import math

import pytest
import torch

from bow.planning.placement.training import LearningSettings, Updater
from tests.planning.placement.policies import small_policy, weights


def set_gradients(policy: torch.nn.Module, gradients: torch.Tensor) -> None:
    own = list(policy.parameters())
    for each, part in zip(own, torch.split(gradients, [each.numel() for each in own]), strict=True):
        each.grad = part.view_as(each).clone()


def test_an_update_is_adams_with_a_clipped_gradient() -> None:
    policy, twin = small_policy(), small_policy()
    updater = Updater(policy, LearningSettings(learning_rate=0.1))
    adam = torch.optim.Adam(twin.parameters(), lr=0.1)
    gradients = torch.randn(len(weights(policy)), generator=torch.Generator().manual_seed(0))
    for _ in range(4):
        set_gradients(policy, gradients)
        assert updater.update()
        set_gradients(twin, gradients / gradients.norm())
        adam.step()
        torch.testing.assert_close(weights(policy), weights(twin))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_change_nothing_and_are_counted(value: float) -> None:
    policy = small_policy()
    updater, before = Updater(policy, LearningSettings()), weights(policy)
    gradients = torch.zeros(len(before))
    gradients[3] = value
    set_gradients(policy, gradients)
    assert not updater.update()
    assert (updater.updates, updater.skipped) == (1, 1)
    assert weights(policy).equal(before)


def test_without_anything_to_learn_momentum_does_not_move_the_parameters() -> None:
    policy = small_policy()
    updater = Updater(policy, LearningSettings())
    set_gradients(policy, torch.ones(len(weights(policy))))
    updater.update()
    before = weights(policy)
    set_gradients(policy, torch.zeros(len(before)))
    assert not updater.update()
    assert weights(policy).equal(before)
    assert (updater.updates, updater.skipped) == (2, 0)


def test_entropy_is_worth_more_where_there_is_little_of_it() -> None:
    settings = LearningSettings(entropy=0.3, least_entropy=4.0)
    assert [settings.worth_of_entropy(nats) for nats in (9.0, 4.0, 2.0, 0.5)] == pytest.approx([0.3, 0.3, 0.6, 2.4])
    assert math.isfinite(settings.worth_of_entropy(0.0))
