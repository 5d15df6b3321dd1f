"""`bow.plan`."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bow
from bow.errors import ScheduleError
from bow.planner.device_topology import GIB, Device, DeviceKind, DeviceTopology


def test_what_the_optimizer_keeps_counts_as_memory() -> None:
    model, batch = nn.Linear(512, 512), (torch.randn(1, 512), torch.zeros(1, dtype=torch.long))
    kind = DeviceKind("small", memory_gib=2.5 * 512 * 513 * 4 / GIB, tflops=1, gb_per_s=1)
    settings: dict[str, Any] = {"budget_s": None, "proposals": 1, "starts": ("single",), "descend": False}
    plan = functools.partial(
        bow.plan, model, batch, cross_entropy, topology=DeviceTopology("one", (Device("a", kind),)), **settings
    )
    assert plan(optimizer=functools.partial(torch.optim.SGD, lr=0.1)).makespan_ns > 0
    with pytest.raises(ScheduleError, match="no strategy to start from fits"):
        plan(optimizer=torch.optim.AdamW)
