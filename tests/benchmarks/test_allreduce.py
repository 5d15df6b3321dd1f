"""What the sum between devices costs: the program, and the paper's way that it compares with."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import main
from benchmarks.allreduce import BASE, BUCKETS, DELAYED, LEADER, VARIABLES, WHOLE, Settings
from benchmarks.leader import ByLeader
from bow.cluster import PendingSum, TrialWorld
from bow.engines import Eager, RoundLoop, Stacked, TaskSettings, step_from_loss
from bow.errors import SettingError
from bow.replicas import LearnerGroup
from bow.sync import SMA

CPU = torch.device("cpu")


class Counting(TrialWorld):
    """Counts what it is asked to sum."""

    def sum(self, tensor: Tensor) -> PendingSum:
        self.sums += 1
        return super().sum(tensor)


def engine(kind: type[Eager] | type[ByLeader]) -> RoundLoop:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    group = LearnerGroup(model, optimizer, learners=3, device=CPU, world=Counting())
    return RoundLoop(kind, group, SMA(), TaskSettings(step_from_loss(nn.functional.cross_entropy)))


def test_the_papers_way_makes_the_same_steps_with_a_sum_for_each_variable() -> None:
    eager, leader = engine(Eager), engine(ByLeader)
    for t in range(6):
        generator = torch.Generator().manual_seed(t)
        inputs = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
        batch = Stacked((inputs, torch.randint(3, (3, 4), generator=generator)))
        for each in (eager, leader):
            each.round(batch)
        torch.testing.assert_close(leader.group.matrix.z, eager.group.matrix.z, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(leader.group.matrix.weights, eager.group.matrix.weights, rtol=1e-12, atol=1e-12)
    assert eager.group.world.sums == 6
    assert leader.group.world.sums == 6 * 5


def test_a_small_run_measures_every_way(tmp_path: Path) -> None:
    status = main("allreduce", ["quick=true", f"out={tmp_path}"])
    values = json.loads((tmp_path / "allreduce.json").read_text())
    (found,) = values["models"].values()
    sums = {way: each["sums_a_round"] for way, each in found.items()}
    assert [sums[way] for way in (BASE, WHOLE, BUCKETS, VARIABLES, DELAYED)] == [0, 1, 1, 1, 1]
    assert sums[LEADER] > 1
    assert status == (found[DELAYED]["ratio"]["median"] > values["limit"])
    page = (tmp_path / "allreduce.md").read_text()
    assert all(way in page for way in found)


def test_one_device_has_nobody_to_sum_with() -> None:
    with pytest.raises(SettingError, match="devices must be at least 2, got 1"):
        Settings(devices=1)
