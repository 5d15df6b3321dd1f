"""Averaging in two levels, against arithmetic that is written out here."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bow
from bow.cluster import ALONE, World
from bow.errors import SettingError
from bow.sync.levels import spectral_radius
from bow.sync.two_level import RowsView
from tests.cluster.worlds import in_world

FEATURES, LR, ROUNDS = 3, 0.05, 9


def batch(round_index: int, learner: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * round_index + learner)
    return tuple(torch.randn(4, size, generator=generator, dtype=torch.float64) for size in (FEATURES, 1))  # type: ignore[return-value]


def replicas(world: World, learners: int, sync: Any) -> bow.Replicas:
    model = nn.Linear(FEATURES, 1, bias=False).double()
    nn.init.ones_(model.weight)
    return bow.Replicas(
        model,
        nn.functional.mse_loss,
        optimizer=functools.partial(torch.optim.SGD, lr=LR),
        learners=learners,
        engine="eager",
        sync=sync,
        device="cpu",
        world=world,
    )


def trained(world: World, by_device: list[int], sync: Any, nodes: bool = False) -> list[Tensor]:
    """z behind every round."""
    if nodes:  # every process is a machine of its own
        world.node, world.nodes, world.local_rank, world.local_size = world.rank, world.size, 0, 1
    own = replicas(world, by_device[world.rank], sync)
    found = []
    for round_index in range(ROUNDS):
        own.round([batch(round_index, learner) for learner in own.group.own])
        found.append(own.z[:FEATURES].clone())
    return found


def gradient(weights: np.ndarray[Any, Any], round_index: int, learner: int) -> np.ndarray[Any, Any]:
    inputs, targets = (tensor.numpy() for tensor in batch(round_index, learner))
    return np.asarray(2 * inputs.T @ (inputs @ weights - targets[:, 0]) / len(inputs))


def written_out(by_device: list[int], mu: float) -> list[np.ndarray[Any, Any]]:
    """Averaging in two levels, learner by learner."""
    z = z_prev = np.ones(FEATURES)
    references = [z.copy() for _ in by_device]
    learners = [[z.copy() for _ in range(count)] for count in by_device]
    between = 1 / (len(by_device) + 1)
    found = []
    for t in range(ROUNDS):
        number, moves = 0, []
        for device, own in enumerate(learners):
            if len(own) == 1:
                references[device] = own[0].copy()
            move = between * (references[device] - z)
            inner = 1 / (len(own) + 1)
            corrections = [move] if len(own) == 1 else [inner * (w - references[device]) for w in own]
            references[device] = references[device] - move + (0 if len(own) == 1 else sum(corrections))
            for j, w in enumerate(own):
                own[j] = w - LR * gradient(w, t, number) - corrections[j]
                number += 1
            moves.append(move)
        z, z_prev = z + sum(moves) + mu * (z - z_prev), z
        found.append(z)
    return found


@pytest.mark.sample(2, 1)
@pytest.mark.parametrize("by_device", [[2, 2], [1, 3, 2]], ids=str)
def test_references_are_averaged_as_written(by_device: list[int]) -> None:
    sync = bow.SMA(mu=0.5, levels=2)
    found = in_world(len(by_device), functools.partial(trained, by_device=by_device, sync=sync))
    expected = written_out(by_device, 0.5)
    for own in found:
        np.testing.assert_allclose(torch.stack(own).numpy(), np.stack(expected), rtol=1e-10)


def test_on_one_device_two_levels_are_one() -> None:
    one, two = (trained(ALONE, [3], bow.SMA(levels=levels)) for levels in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("by_device", [[1, 1], [2, 2], [4, 4], [8, 8, 8, 8], [1, 4], [1, 2, 3], [2] * 8], ids=str)
def test_deviations_calm_down_by_default(by_device: list[int], mu: float) -> None:
    assert spectral_radius(by_device, None, mu) < 1


@pytest.mark.parametrize(("alpha", "mu"), [(None, 0.0), (None, 0.5), (None, 0.9), (0.15, 0.5)])
@pytest.mark.parametrize("by_device", [[1, 1], [2, 2], [1, 2, 3]], ids=str)
def test_deviations_decay_at_the_predicted_rate(by_device: list[int], alpha: float | None, mu: float) -> None:
    sync, rows = bow.SMA(alpha=alpha, mu=mu, levels=2), []
    for device, learners in enumerate(by_device):
        weights = torch.full((learners, 1), (-1.0) ** device * (device + 1), dtype=torch.float64)
        z = torch.zeros(1, dtype=torch.float64)
        rows.append(RowsView(weights, weights, z, z.clone(), weights.clone(), {}, by_device=by_device))
        sync.start(rows[-1])
    spreads = []
    for _ in range(100):
        for each in rows:
            sync.contribute(each, sum(by_device), sum(by_device))
        total = sum(each.total for each in rows)
        for each in rows:
            each.total.copy_(total)
            sync.apply(each, sum(by_device), sum(by_device))
        spreads.append(max(float((each.weights - each.z).abs().max()) for each in rows))
    decay = (max(spreads[-20:]) / max(spreads[40:60])) ** (1 / 40)
    assert decay == pytest.approx(spectral_radius(by_device, alpha, mu), abs=0.01)


def test_an_alpha_that_is_unstable_is_refused() -> None:
    with pytest.raises(SettingError, match=r"alpha=0.9 is unstable in two levels with 2, 2 learners"):
        bow.SMA(alpha=0.9, levels=2).check(4, [2, 2])


@pytest.mark.nightly
def test_nodes_of_one_learner_are_learners_of_the_outer_synchroniser() -> None:
    sync = bow.TwoLevel(bow.SMA(), bow.DiLoCo(every=3))
    found = in_world(2, functools.partial(trained, by_device=[1, 1], sync=sync, nodes=True))
    alone = trained(ALONE, [2], bow.DiLoCo(every=3))
    for own in found:
        torch.testing.assert_close(torch.stack(own), torch.stack(alone), rtol=1e-10, atol=1e-10)


def test_nodes_go_on_from_where_the_outer_synchroniser_puts_them() -> None:
    every, outer_lr, momentum = 3, 0.7, 0.9
    sync = bow.TwoLevel(bow.SMA(), bow.DiLoCo(every=every, outer_lr=outer_lr, outer_momentum=momentum))
    found = in_world(2, functools.partial(trained, by_device=[2, 3], sync=sync, nodes=True))
    nodes = [replicas(ALONE, count, bow.SMA()) for count in (2, 3)]
    z, velocity, expected = nodes[0].z.clone(), torch.zeros_like(nodes[0].z), []
    for t in range(ROUNDS):
        for node, learners in zip(nodes, (range(2), range(2, 5)), strict=True):
            node.round([batch(t, learner) for learner in learners])
        if (t + 1) % every == 0:
            delta = z - (nodes[0].z + nodes[1].z) / 2
            velocity = momentum * velocity + delta
            z = z - outer_lr * (delta + momentum * velocity)
            for node in nodes:
                shift = z - node.z
                for tensor in (node.W, node.z, node.group.matrix.state["z_prev"]):
                    tensor.add_(shift)
        expected.append(z[:FEATURES].clone())
    for own in found:
        torch.testing.assert_close(torch.stack(own), torch.stack(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("inner", "outer", "message"),
    [
        (bow.SSGD(), bow.DiLoCo(), "inner must average with the step"),
        (bow.SMA(every=2), bow.DiLoCo(), "inner must average with the step, in every round"),
        (bow.SMA(levels=2), bow.DiLoCo(), "in one level"),
        (bow.SMA(), bow.SMA(), "outer must average after the steps"),
        (bow.SMA(), "diloco", "outer must be a synchroniser"),
    ],
    ids=repr,
)
def test_what_does_not_go_together_is_refused(inner: Any, outer: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        bow.TwoLevel(inner, outer)
