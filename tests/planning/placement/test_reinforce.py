import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bow.planning.placement.training import FAILURE_PENALTY, Baseline, policy_loss, sanitised
from tests.planning.placement.policies import small_policy


def scale(advantages: list[float]) -> float:
    return math.sqrt(sum(each * each for each in advantages) / len(advantages))


def test_the_baseline_begins_at_the_failing_signal_and_moves_to_what_is_usual() -> None:
    baseline = Baseline(failing_s=100.0)
    found = baseline.advantages([4.0, 16.0], mask_failures=False)
    assert found.tolist() == pytest.approx([each / scale([-8.0, -6.0]) for each in (-8.0, -6.0)])
    assert baseline.value == pytest.approx(0.9 * 10 + 0.1 * 3)
    for _ in range(200):
        baseline.advantages([4.0], mask_failures=False)
    assert baseline.value == pytest.approx(2.0)


def test_failures_count_as_the_failing_signal_until_they_are_masked() -> None:
    baseline = Baseline(failing_s=100.0, value=4.0)
    found = baseline.advantages([None, 9.0], mask_failures=False)
    assert found.tolist() == pytest.approx([each / scale([6.0, -1.0]) for each in (6.0, -1.0)])
    assert baseline.value == pytest.approx(0.9 * 4 + 0.1 * 6.5)
    baseline = Baseline(failing_s=100.0, value=4.0)
    assert baseline.advantages([None, 9.0], mask_failures=True).tolist() == [0.0, -1.0]
    assert baseline.value == pytest.approx(0.9 * 4 + 0.1 * 3)


def test_a_failing_time_that_is_not_given_comes_from_the_first_that_fit() -> None:
    baseline = Baseline()
    assert baseline.advantages([None, None], mask_failures=False).tolist() == [0.0, 0.0]
    assert baseline.value is None
    found = baseline.advantages([None, 4.0, 1.0], mask_failures=False)
    failing = math.sqrt(FAILURE_PENALTY * 4)
    off = [0.0, 2 - failing, 1 - failing]
    assert found.tolist() == pytest.approx([each / scale(off) for each in off])
    baseline.advantages([25.0], mask_failures=False)
    assert baseline.failing_s == FAILURE_PENALTY * 4


def test_nothing_but_masked_failures_leaves_the_baseline_alone() -> None:
    baseline = Baseline(failing_s=9.0, value=2.0, square=1.0)
    assert baseline.advantages([None, None], mask_failures=True).tolist() == [0.0, 0.0]
    assert (baseline.value, baseline.square) == (2.0, 1.0)


@given(st.floats(1e-6, 1e6), st.lists(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), min_size=1, max_size=6))
def test_scaled_advantages_do_not_depend_on_the_unit_of_time(unit: float, batches: list[list[float]]) -> None:
    one, other = Baseline(failing_s=50.0), Baseline(failing_s=50.0 * unit)
    for times in batches:
        expected = one.advantages(list(times), mask_failures=False)
        found = other.advantages([time * unit for time in times], mask_failures=False)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_scaled_advantages_of_equal_placements_vanish_rather_than_divide_by_zero() -> None:
    baseline = Baseline(failing_s=4.0, value=2.0)
    assert baseline.advantages([4.0, 4.0], mask_failures=False).tolist() == [0.0, 0.0]


def test_what_is_no_time_is_a_failure() -> None:
    assert sanitised([math.nan, math.inf, 0.0, -1.0, None, 2.0]) == [None, None, None, None, None, 2.0]


def test_the_expected_gradient_of_the_loss_is_that_of_the_expected_signal() -> None:
    """Over all placements, weighted by their probabilities, REINFORCE gives the gradient of J = sum p R exactly."""
    policy = small_policy()
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    signals = torch.linspace(1, 5, len(every), dtype=torch.float64)
    likelihood = policy.log_probability(every)
    (likelihood.log_probabilities.exp() * signals).sum().backward()
    expected = [each.grad for each in policy.parameters()]
    policy.zero_grad()
    likelihood = policy.log_probability(every)
    weights = likelihood.log_probabilities.detach().exp() * len(every)  # the loss divides by the number of samples
    policy_loss(weights * (signals - 2.5), *likelihood, entropy_weight=0.0).backward()
    for found, wanted in zip((each.grad for each in policy.parameters()), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_entropy_is_worth_its_weight() -> None:
    advantages, entropies = torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 3.0])
    assert policy_loss(advantages, torch.zeros(2), entropies, 0.5).item() == -1.0


def test_elites_become_likelier_whatever_was_drawn() -> None:
    drawn, elites = torch.tensor([-1.0, -2.0]), torch.tensor([-3.0, -5.0])
    advantages = torch.tensor([1.0, 3.0], dtype=torch.float64)
    found = policy_loss(advantages, torch.cat([drawn, elites]), torch.ones(4), 0.0)
    assert found.item() == (-1.0 - 6.0) / 2 + 4.0
