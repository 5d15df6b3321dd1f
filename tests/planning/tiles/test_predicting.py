"""What is predicted of a strategy: with what its devices' messages take while they train."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bow.planning.problem.device_topology import DeviceKind
from bow.planning.problem.partition import Partition
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.tiles import tile_costs
from bow.planning.tiles.tile_costs import predicted_timeline
from bow.schedule import Timeline
from tests.planning.search_graphs import perceptron

KIND = DeviceKind("core", memory_gib=1, tflops=0.05, gb_per_s=8)


@pytest.mark.parametrize(("latency_us", "sum_us"), [(50_000, 0), (0, 70_000), (20_000, 30_000)])
def test_messages_and_sums_take_what_they_take_in_use(
    latency_us: int, sum_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_costs, "device_kind", lambda *_: KIND)
    monkeypatch.setattr(tile_costs, "times_cache", lambda *_: SimpleNamespace(load=lambda make: None))
    monkeypatch.setattr(
        tile_costs, "cached_busy_links", lambda *_: ({(0, 1): (latency_us * 1e3, 0.001)}, float(sum_us))
    )
    graph = perceptron()
    strategy = Partition(graph.hash, data_parallel(graph, RULES, 2))
    group: Any = SimpleNamespace(device=torch.device("cpu"), size=2, rank=0, all_gather=lambda value: [value] * 2)
    optimizer = torch.optim.SGD([torch.zeros(1)])
    spans = predicted_timeline(graph, strategy, group, optimizer).spans
    reductions = [span.duration_ns for span in spans if span.category == "reduction"]
    assert min(reductions) >= 1000 * (2 * latency_us + sum_us)
    assert min(reductions) < 1000 * (2 * latency_us + sum_us) + 1_000_000
    group.rank = 1
    assert predicted_timeline(graph, strategy, group, optimizer) == Timeline()
