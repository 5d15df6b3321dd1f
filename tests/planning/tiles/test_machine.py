"""The devices of this machine as a topology: cores here, GPUs as a system with some would tell."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bow.devices import available_cores
from bow.devices.links import links_between
from bow.errors import SettingError
from bow.planning.problem.device_topology import Device, DeviceKind
from bow.planning.problem.topology_files import load_topology, save_topology
from bow.planning.tiles import machine
from bow.planning.tiles.machine import core_kind, measure_machine, pinned_to, read_devices, topology_with_assumed_links

KIND = DeviceKind("core", memory_gib=1, tflops=0.05, gb_per_s=8)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured."""

    def kind(device: torch.device, name: str, memory_gib: float) -> DeviceKind:
        return DeviceKind(name, memory_gib=memory_gib, tflops=1, gb_per_s=10)

    monkeypatch.setattr(machine, "device_kind", kind)


@pytest.mark.usefixtures("quick")
def test_cores_are_shared_out_evenly_and_every_pair_is_joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: range(6))
    topology = read_devices("cpu", 3)
    assert [device.name for device in topology.devices] == ["cores0", "cores1", "cores2"]
    assert {device.kind.name for device in topology.devices} == {core_kind(2)}
    assert [link.ends for link in topology.links] == [
        ("cores0", "cores1"),
        ("cores0", "cores2"),
        ("cores1", "cores2"),
    ]
    assert not topology.overlap
    save_topology(topology, tmp_path / "own.yaml")
    assert load_topology(tmp_path / "own.yaml") == topology
    assert read_devices("cpu").num_devices == 6
    with pytest.raises(SettingError, match="7 devices need 7 cores, this process has 6"):
        read_devices("cpu", 7)


@pytest.mark.usefixtures("quick")
def test_cores_share_the_memory_that_a_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.devices.memory._cgroup", lambda: (2**30, 0))
    monkeypatch.setattr(machine, "available_cores", lambda: range(2))
    assert read_devices("cpu", 2).devices[0].kind.memory_gib == 0.5


LISTING = "GPU 0: H100 (UUID: GPU-0a)\nGPU 1: H100 (UUID: GPU-1b)\nGPU 2: H100 (UUID: GPU-2c)\n"
TABLE = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV2\tSYS\nGPU1\tNV2\tX\tPHB\nGPU2\tSYS\tPHB\tX\n"


@pytest.fixture
def gpus(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs, the first and the last of which have changed their numbers in what PyTorch sees."""
    properties = [SimpleNamespace(name="H100", total_memory=80 * 2**30, uuid=uuid) for uuid in ("2c", "1b", "0a")]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    monkeypatch.setattr(machine, "read_gpu_links", lambda uuids: links_between(uuids, LISTING, TABLE))


@pytest.mark.usefixtures("gpus")
def test_gpus_have_nvlinks_where_the_system_tells_and_share_pcie_elsewhere() -> None:
    topology = read_devices("cuda")
    assert topology.overlap
    assert [(link.ends, link.gb_per_s) for link in topology.links] == [
        (("gpu1", "gpu2"), 40.0),
        (("gpu0", "gpu1", "gpu2"), 8.0),
    ]
    assert topology.devices[0].kind.memory_gib == 80
    with pytest.raises(SettingError, match="4 GPUs were requested, this machine has 3"):
        read_devices("cuda", 4)


def test_devices_of_several_machines_and_cores_have_a_link_for_each_pair() -> None:
    devices = [Device(f"device {number}", KIND, node) for number, node in enumerate((0, 0, 1))]
    for gpus in ([], ["0a", "1b", "0a"]):
        topology = topology_with_assumed_links(devices, gpus)
        assert [len(link.ends) for link in topology.links] == [2, 2, 2]
        assert topology.overlap is bool(gpus)


def test_other_sorts_of_devices_are_refused() -> None:
    with pytest.raises(SettingError, match="got 'tpu'"):
        read_devices("tpu")


@pytest.mark.usefixtures("quick")
def test_links_are_measured_by_one_process_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class World:
        local_rank = 0

        def __enter__(self) -> World:
            return self

        def __exit__(self, *_: object) -> None: ...

    def start(size: int, device: torch.device, job: Any) -> World:
        seen.append((size, str(device)))
        job.discard()
        return World()

    monkeypatch.setattr(machine, "available_cores", lambda: range(2))
    monkeypatch.setattr(machine, "start", start)
    kept: list[Any] = []
    monkeypatch.setattr(machine, "measure_busy_links", lambda group: ({(0, 1): (100_000.0, 0.5)}, 30.0))
    monkeypatch.setattr(machine, "cache_busy_links", lambda group, *found: kept.append(found))
    topology = measure_machine("cpu")
    assert [(link.ends, link.latency_us, link.gb_per_s) for link in topology.links] == [
        (("core0", "core1"), 100.0, 2.0)
    ]
    assert topology.sum_us == 30.0
    assert kept == [({(0, 1): (100_000.0, 0.5)}, 30.0)]  # for the predictions of trainings
    assert seen == [(2, "cpu")]
    assert measure_machine("cpu", 1).num_devices == 1  # nothing to be measured between one


def test_all_threads_of_the_process_keep_to_the_cores_that_are_given() -> None:
    cores, done = sorted(available_cores()), threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    before = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        with pinned_to(cores[:1]):
            assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id or 0) == {cores[0]}
            assert torch.get_num_threads() == 1
        assert os.sched_getaffinity(other.native_id or 0) == before[0]
        assert (os.sched_getaffinity(0), torch.get_num_threads()) == before
    finally:
        done.set()
        other.join()
