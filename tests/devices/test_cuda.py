"""What of the CUDA device can be tested without one."""

from __future__ import annotations

import os
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bow.devices.cuda import CudaDevice, GraphsOfStream, prepare_environment
from bow.errors import SettingError


class Graph:
    """Stands for a graph of CUDA's."""


def test_graphs_of_a_stream_are_destroyed_together() -> None:
    graphs = GraphsOfStream()
    made = [Graph() for _ in range(3)]
    alive, numbers = weakref.WeakSet(made), [graphs.keep(each) for each in made]
    del made
    graphs.reserved = 100
    graphs.drop(numbers[0])
    graphs.drop(numbers[2])
    assert len(alive) == 3
    graphs.drop(numbers[1])
    assert len(alive) == 0
    assert graphs.reserved == 0
    graphs.drop(numbers[1])  # once more, when Python collects what was reset


class Pool:
    """Hands out streams round-robin, as torch does."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.next = 0

    def __call__(self, device: Any, priority: int = 0) -> Any:
        self.next += 1
        return SimpleNamespace(cuda_stream=(priority, self.next % self.size))


def test_no_two_names_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(size=8)
    monkeypatch.setattr(torch.cuda, "Stream", pool)
    device = CudaDevice(torch.device("cuda", 0))
    streams = []
    for index in range(6):
        pool.next += 3 * (index % 2)  # somebody else takes some
        streams.append(device.stream(f"learner {index}"))
    assert len({stream.raw.cuda_stream for stream in streams}) == 6  # type: ignore[attr-defined]
    assert device.stream("learner 3") is streams[3]
    assert device.stream("synchronisation", high_priority=True).raw.cuda_stream[0] < 0  # type: ignore[attr-defined]


def test_more_streams_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Pool(size=2))
    device = CudaDevice(torch.device("cuda", 0))
    for index in range(2):
        device.stream(f"learner {index}")
    with pytest.raises(SettingError, match=r"2 streams are in use on cuda:0 .* use fewer learners"):
        device.stream("learner 2")


def test_hardware_queues_are_asked_for_unless_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    prepare_environment()
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    prepare_environment()
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
