from __future__ import annotations

import functools
import math
import threading
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.placement_steps import RealSteps
from bow.planning.placement.groups import SimulatedEvaluator
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import RooflineCosts
from bow.planning.tiles import ProcessGroup, TileRuntime, capture_operators
from tests.planning.placement.placed_steps import every_operator

SGD = functools.partial(torch.optim.SGD, lr=0.1)


def real_steps(memory_gib: float = 1.0, devices: int = 1, group: Any = None, **arguments: int) -> RealSteps:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(5, 4), torch.randint(3, (5,))
    captured = capture_operators(model, batch, nn.functional.cross_entropy)
    kind = DeviceKind("core", memory_gib=memory_gib, tflops=1.0, gb_per_s=10.0, overhead_us=1.0)
    names = [f"core{number}" for number in range(devices)]
    links = [Link(tuple(names), 5.0, 1.0)] if devices > 1 else []
    topology = DeviceTopology("machine", tuple(Device(name, kind) for name in names), tuple(links))
    problem = Problem(captured.graph, RULES, topology, RooflineCosts(captured.graph, RULES, topology))
    evaluator = SimulatedEvaluator(problem, every_operator(captured.graph))
    group = group or ProcessGroup(torch.device("cpu"), is_alone=True)
    return RealSteps(captured, model, batch, SGD, evaluator, group, **arguments)


class InThreads:
    """Stands in for the group of two processes that are threads here."""

    size = 2

    def __init__(self, rank: int, barrier: threading.Barrier, values: list[Any]) -> None:
        self.rank, self._barrier, self._values = rank, barrier, values

    def all_gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values

    def sum_all(self, tensors: list[torch.Tensor]) -> None:
        self._barrier.wait()


def test_the_first_of_the_steps_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps = [0.0], []

    def step(runtime: TileRuntime, batch: object, index: int) -> torch.Tensor:
        steps.append(index)
        now[0] += 100.0 if index == 0 else 2.0 + index % 2
        return torch.zeros(())

    monkeypatch.setattr(TileRuntime, "step", step)
    monkeypatch.setattr("benchmarks.placement_steps.time.perf_counter", lambda: now[0])
    measure = real_steps(steps=5)
    placement = (0,) * len(measure.evaluator.groups)
    assert measure([placement]) == [2.5]
    assert steps == [0, 1, 2, 3, 4]


def test_steps_are_really_run_and_what_does_not_fit_is_not() -> None:
    measure = real_steps(steps=2)
    placement = (0,) * len(measure.evaluator.groups)
    (seconds,) = measure([placement])
    assert seconds is not None
    assert 0 < seconds < math.inf
    assert real_steps(memory_gib=1e-9)([placement]) == [None]


def test_the_other_devices_take_part_in_every_step_until_they_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, strategies = threading.local(), [[], []]

    class Runtime:
        def __init__(self, captured: Any, strategy: Any, model: Any, optimizer: Any, group: InThreads) -> None:
            self.rank = group.rank
            strategies[self.rank].append([split.devices[0] for split in strategy.splits])

        def step(self, batch: Any, index: int) -> None:
            clocks.now = getattr(clocks, "now", 0.0) + (3.0 if self.rank else 2.0)  # the slower one counts

    monkeypatch.setattr("benchmarks.placement_steps.TileRuntime", Runtime)
    monkeypatch.setattr("benchmarks.placement_steps.time.perf_counter", lambda: getattr(clocks, "now", 0.0))
    barrier, values = threading.Barrier(2, timeout=600), [None, None]
    first, second = (real_steps(devices=2, group=InThreads(n, barrier, values), steps=3) for n in range(2))
    other = threading.Thread(target=second.serve)
    other.start()
    count = len(first.evaluator.groups)
    placements = [(0,) * count, (1,) * count, (0, *(1,) * (count - 1))]
    assert first(placements) == [3.0, 3.0, 3.0]
    first.close()
    other.join(60)
    assert not other.is_alive()
    assert strategies[0] == strategies[1] == [list(placement) for placement in placements]
