"""Learners on several devices are the learners of one: the same z, round by round, for every synchroniser."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.cluster import ALONE, World
from bow.cluster.processes import Processes
from bow.data import open_stream
from tests.cluster.worlds import in_world
from tests.synchronisers import SYNCHRONISERS

CLASSES, FEATURES, BATCH, ROUNDS = 3, 6, 4, 7


@dataclass(frozen=True)
class Case:
    """What is trained, and by which engine."""

    sync: str
    engine: str = "eager"
    dropout: float = 0.0
    clip_norm: float | None = None
    sockets: bool = False  # instead of memory that the processes share

    def replicas(self, learners: int, world: World, seed: int) -> bow.Replicas:
        """Learners of one device; every rank builds a model of its own, of which rank 0's counts."""
        if isinstance(world, Processes):
            world._may_share = not self.sockets
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(self.dropout), nn.Linear(8, CLASSES)
        ).double()
        return bow.Replicas(
            model,
            nn.functional.cross_entropy,
            optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            learners=learners,
            engine=self.engine,  # type: ignore[arg-type]
            sync=SYNCHRONISERS[self.sync](),
            clip_norm=self.clip_norm,
            device="cpu",
            world=world,
        )


CASES = [
    *(Case(sync) for sync in SYNCHRONISERS),
    *(Case(sync, "graph") for sync in ("sma", "sma-every-2", "easgd", "ssgd", "asgd")),
    Case("sma", "streams"),
    Case("sma", "fused"),
    Case("sma", "eager", dropout=0.5),
    Case("sma", "graph", dropout=0.5),
    Case("ssgd", clip_norm=0.1),
    *(Case(sync, sockets=True) for sync in ("sma", "easgd", "ssgd", "diloco")),
]


@torch.compiler.set_stance("force_eager")
def trajectory(world: World, by_device: list[int], cases: list[Case]) -> dict[Case, list[Tensor]]:
    """z behind every round and the central model's buffers at the end, for every case; the last round is short."""
    found = {}
    generator = torch.Generator().manual_seed(3)
    in_all = sum(by_device)
    samples = BATCH * in_all * ROUNDS - BATCH - 1
    data = (
        torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64),
        torch.randint(CLASSES, (samples,), generator=generator),
    )
    for case in cases:
        replicas = case.replicas(by_device[world.rank], world, seed=world.rank)
        stream = open_stream(data, batch_size=BATCH, seed=1)
        found[case] = []
        while (deal := stream.deal(in_all, replicas.group.own)) is not None:
            replicas.round(deal.batches)
            if case.sync == "independent":
                replicas.settle()
            found[case].append(replicas.z.clone())
        replicas.settle()
        found[case] += [buffer.double() for buffer in replicas.central.buffers()]
        replicas.close()
    return found


def _named(given: list[int] | list[Case]) -> str:
    return f"{len(given)} cases" if isinstance(given[0], Case) else str(given)


DEVICES = [
    ([2, 1], CASES),
    ([1, 2, 1, 1], CASES[::5]),
    *(pytest.param(devices, CASES, marks=pytest.mark.nightly) for devices in ([1, 1], [1, 3, 2], [1, 2, 1, 1])),
]


@pytest.mark.parametrize(("by_device", "cases"), DEVICES, ids=_named)
def test_several_devices_follow_one(by_device: list[int], cases: list[Case]) -> None:
    found = in_world(len(by_device), functools.partial(trajectory, by_device=by_device, cases=cases))
    alone = trajectory(ALONE, [sum(by_device)], cases)
    for case in cases:
        assert len(alone[case]) == ROUNDS + 3
        for rank, own in enumerate(found):
            for step, (ours, expected) in enumerate(zip(own[case], alone[case], strict=True)):
                torch.testing.assert_close(
                    ours, expected, rtol=1e-10, atol=1e-10, msg=lambda m, at=(case, rank, step): f"{at}: {m}"
                )
        assert all(torch.equal(a, b) for own in found[1:] for a, b in zip(own[case], found[0][case], strict=True))
