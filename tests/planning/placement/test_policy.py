import itertools

import pytest
import torch
from torch import Tensor

from bow.planning.placement.policy import PlacementPolicy
from tests.planning.placement.policies import chain, small_policy


def lstm_step(x: Tensor, h: Tensor, c: Tensor, module: torch.nn.LSTM, suffix: str = "l0") -> tuple[Tensor, Tensor]:
    """The equations of an LSTM, one vector at a time."""
    weights = {name: getattr(module, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    gates = weights["weight_ih"] @ x + weights["bias_ih"] + weights["weight_hh"] @ h + weights["bias_hh"]
    i, f, g, o = gates.chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def slow_log_probabilities(policy: PlacementPolicy, placement: tuple[int, ...]) -> list[Tensor]:
    """By operation: the logarithms of the probabilities of its devices, after the devices chosen before."""
    vectors = policy.embedding()
    half = policy.encoder.hidden_size
    runs = []
    for suffix in ["l0", "l0_reverse"]:
        h, c, outputs = torch.zeros(half), torch.zeros(half), {}
        order = range(len(vectors)) if suffix == "l0" else reversed(range(len(vectors)))
        for number in order:
            h, c = lstm_step(vectors[number], h, c, policy.encoder, suffix)
            outputs[number] = h
        runs.append((outputs, h, c))
    encoded = [torch.cat([outputs[number] for outputs, _, _ in runs]) for number in range(len(vectors))]
    h, c = torch.cat([h for _, h, _ in runs]), torch.cat([c for _, _, c in runs])
    before, found = policy.operations.num_devices, []
    for number, device in enumerate(placement):
        x = torch.cat([policy.devices.weight[before], encoded[number]])
        h, c = lstm_step(x, h, c, policy.decoder)
        query = policy.of_decoder.weight @ h
        scores = [(policy.of_encoder.weight @ each) @ query / len(query) ** 0.5 for each in encoded]
        attention = torch.stack(scores).softmax(0)
        context = sum((weight * each for weight, each in zip(attention, encoded, strict=True)), torch.zeros(len(h)))
        logits = policy.choice.weight @ torch.cat([h, context]) + policy.choice.bias + policy.habit.weight[before]
        found.append(logits.log_softmax(0))
        before = device
    return found


def test_likelihoods_are_those_of_plain_loops() -> None:
    policy = small_policy(chain(4, 3))
    placements = [(0, 1, 0, 2), (2, 2, 0, 0), (1, 1, 0, 2)]
    found = policy.log_probability(torch.tensor(placements))
    for number, placement in enumerate(placements):
        steps = slow_log_probabilities(policy, placement)
        expected = sum(step[device].item() for step, device in zip(steps, placement, strict=True))
        entropy = -sum((step.exp() * step).sum().item() for step in steps)
        assert found.log_probabilities[number].item() == pytest.approx(expected, abs=1e-5)
        assert found.entropies[number].item() == pytest.approx(entropy, abs=1e-5)


def test_probabilities_of_all_placements_sum_to_one() -> None:
    every = torch.tensor(list(itertools.product(range(3), repeat=4)))
    found = small_policy().log_probability(every).log_probabilities
    assert found.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert found.std() > 1e-3


def test_also_a_policy_that_is_sure_draws_neighbours() -> None:
    policy = small_policy(chain(4, 3))
    with torch.no_grad():
        policy.choice.bias[0] = 100.0
    draws = torch.Generator().manual_seed(0)
    assert set(map(tuple, policy.sample(50, draws).tolist())) == {(0, 0, 0, 0)}
    drawn = policy.sample(6000, draws, explorers=3000, random_choices=1.2)
    assert (drawn[:3000] == 0).all()
    parts = [(drawn[3000:, step] == device).float().mean().item() for step in range(4) for device in (1, 2)]
    assert parts == pytest.approx([0.1] * 8, abs=0.03)


def test_samples_come_with_the_probabilities_that_they_have() -> None:
    policy, generator, found = small_policy(), torch.Generator().manual_seed(1), torch.zeros(64)

    def draw(step: int, logits: Tensor) -> Tensor:
        device = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)
        found.add_(logits.log_softmax(dim=1).gather(1, device).squeeze(1))
        return device.squeeze(1)

    with torch.no_grad():
        placements = policy._decode(64, draw)
        torch.testing.assert_close(policy.log_probability(placements).log_probabilities, found)


def test_samples_are_as_frequent_as_they_are_likely() -> None:
    policy = small_policy(chain(2, 2))
    with torch.no_grad():
        policy.choice.weight.mul_(8)
    placements = policy.sample(20_000, torch.Generator().manual_seed(0))
    every = torch.tensor(list(itertools.product(range(2), repeat=2)))
    expected = policy.log_probability(every).log_probabilities.exp()
    shares = torch.stack([(placements == each).all(dim=1).float().mean() for each in every])
    torch.testing.assert_close(shares, expected.detach(), atol=0.015, rtol=0)


def test_greedy_takes_the_likeliest_device_at_each_step() -> None:
    policy = small_policy(chain(5, 3), seed=3)
    greedy = policy.greedy()
    assert [int(step.argmax()) for step in slow_log_probabilities(policy, greedy)] == list(greedy)


def test_the_seed_decides_the_parameters_and_leaves_torchs_own_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, same, other = small_policy(seed=1), small_policy(seed=1), small_policy(seed=2)
    assert torch.rand(3).equal(expected)
    pairs = list(zip(first.parameters(), same.parameters(), strict=True))
    assert all(a.equal(b) for a, b in pairs)
    assert not all(a.equal(b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_a_new_policy_draws_runs_of_one_device() -> None:
    placements = small_policy(chain(20, 3)).sample(100, torch.Generator().manual_seed(0))
    assert (placements[:, 1:] != placements[:, :-1]).double().mean().item() < 0.1
