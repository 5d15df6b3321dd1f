"""The topology of this machine, detected and measured."""

import contextlib
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from bow.cluster import WorkerJob, World, join, start
from bow.devices import available_cores, num_threads, processor
from bow.devices.cores import warn_if_busy
from bow.devices.links import Connection, gpu_uuid, read_gpu_links
from bow.devices.memory import host_memory
from bow.errors import SettingError
from bow.planning.problem.device_topology import GIB, Device, DeviceKind, DeviceTopology, Link
from bow.planning.tiles.communication import THREADS, ProcessGroup, synchronise
from bow.planning.tiles.link_benchmark import cache_busy_links, measure_busy_links, measured_topology

SIDE = {"cpu": 512, "cuda": 4096}  # of the square matrices whose product is timed
COPIED = {"cpu": 2**24, "cuda": 2**28}  # float32 elements of the timed copy: far larger than caches
LAUNCHES = 200  # small operators launched to time the launch overhead
REPEATS = 5
# Output size at which a matrix product reaches half its speed; on a GPU per multiprocessor: four for each of 128 units.
HALF_OUTPUTS = {"cpu": 64, "cuda": 4 * 128}


def device_kind(device: torch.device, name: str, memory_gib: float) -> DeviceKind:
    side, copied = SIDE[device.type], COPIED[device.type]
    left, right = torch.randn(2, side, side, device=device)
    source = torch.randn(copied, device=device)
    target, small = torch.empty_like(source), torch.randn(16, device=device)
    product_s = _time_s(device, lambda: torch.mm(left, right))
    copy_s = _time_s(device, lambda: target.copy_(source))

    def start_some() -> None:
        for _ in range(LAUNCHES):
            torch.tanh(small)

    units = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return DeviceKind(
        name,
        memory_gib=memory_gib,
        tflops=2 * side**3 / product_s / 1e12,
        gb_per_s=2 * copied * source.element_size() / copy_s / 1e9,
        overhead_us=_time_s(device, start_some) / LAUNCHES * 1e6,
        half_outputs=HALF_OUTPUTS[device.type] * units,
    )


def _time_s(device: torch.device, run: Callable[[], object]) -> float:
    times = []
    for _ in range(1 + REPEATS):
        synchronise(device)
        start = time.perf_counter()
        run()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


MACHINE = "machine"  # topology name of the current machine
NVLINK_GB_PER_S = 20.0  # each NVLink, per direction: data sheet 25 GB/s since V100, about 80 % of it in practice
# Between GPUs without NVLink, on PCIe 3.0 x16; replaced by measurements.
PCIE_GB_PER_S: dict[Connection, float] = {"SWITCH": 12.0, "HOST": 11.0, "NODE": 10.0, "SYSTEM": 8.0}
NVLINK_LATENCY_US = 3.0
PCIE_LATENCY_US = 8.0
# Gloo between two processes of one machine that also compute; replaced by measurements.
MEMORY_LATENCY_US = 50.0
MEMORY_GB_PER_S = 0.6


def measure_machine(devices: str = "auto", count: int | None = None) -> DeviceTopology:
    """Return the topology of `read_devices` with measured links."""
    # Starts a process for each device and takes up to half a minute. The result is cached for predictions of trainings.
    known = read_devices(devices, count)
    if known.num_devices == 1:
        return known
    warn_if_busy()
    cuda = known.devices[0].name.startswith("gpu")
    with start(known.num_devices, _device(cuda, 0), WorkerJob(functools.partial(_worker_main, known, cuda))) as world:
        return _measured(world, known, cuda)


def read_devices(devices: str = "auto", count: int | None = None) -> DeviceTopology:
    """Return the topology of this machine: its GPUs and their links, or its CPU cores."""
    # Compute speed is measured (about a second); link speed is assumed from the kind of link. `measure_machine`
    # measures links too.
    if devices not in ("auto", "cpu", "cuda"):
        raise SettingError(f'devices must be "auto", "cpu" or "cuda", got {devices!r}')
    if devices == "cuda" or (devices == "auto" and torch.cuda.is_available()):
        return _gpus(count)
    return _cores(count)


def topology_with_assumed_links(devices: Sequence[Device], gpus: Sequence[str] = ()) -> DeviceTopology:
    if gpus and len({device.node for device in devices}) == 1:
        links = tuple(_gpu_links(devices, gpus))
    else:
        pairs = itertools.combinations([device.name for device in devices], 2)
        links = tuple(Link(pair, MEMORY_LATENCY_US, MEMORY_GB_PER_S) for pair in pairs)
    return DeviceTopology("this machine", tuple(devices), links, overlap=bool(gpus))


def core_kind(threads: int) -> str:
    return f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"


@contextlib.contextmanager
def pinned_to(cores: Sequence[int]) -> Iterator[None]:
    """Pin all threads of this process, including Gloo's, to some cores, and compute with this many threads."""
    before = os.sched_getaffinity(0)
    with num_threads(len(cores)):
        _pin(cores)
        try:
            yield
        finally:
            _pin(before)


def _pin(cores: Sequence[int] | set[int]) -> None:
    for thread in THREADS.iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread.name), cores)


def _device(cuda: bool, number: int) -> torch.device:
    return torch.device("cuda", number) if cuda else torch.device("cpu")


def _worker_main(known: DeviceTopology, cuda: bool) -> None:
    with join(_device(cuda, int(os.environ["LOCAL_RANK"]))) as world:
        _measured(world, known, cuda)


def _measured(world: World, known: DeviceTopology, cuda: bool) -> DeviceTopology:
    group = ProcessGroup(_device(cuda, world.local_rank))
    link_models, sum_us = measure_busy_links(group)
    cache_busy_links(group, link_models, sum_us)
    return measured_topology(known, link_models, sum_us)


def _cores(count: int | None) -> DeviceTopology:
    cores = len(available_cores())
    count = cores if count is None else count
    if not 1 <= count <= cores:
        raise SettingError(f"{count} devices need {count} cores, this process has {cores}; use fewer")
    threads = cores // count
    with num_threads(threads):
        kind = device_kind(torch.device("cpu"), core_kind(threads), host_memory()[0] / GIB / count)
    names = [f"core{number}" if threads == 1 else f"cores{number}" for number in range(count)]
    return topology_with_assumed_links([Device(name, kind) for name in names])


def _gpus(count: int | None) -> DeviceTopology:
    there = torch.cuda.device_count()
    count = there if count is None else count
    if not 1 <= count <= there:
        raise SettingError(f"{count} GPUs were requested, this machine has {there}; use fewer")
    kinds: dict[str, DeviceKind] = {}
    devices = []
    for number in range(count):
        properties = torch.cuda.get_device_properties(number)
        if properties.name not in kinds:
            memory_gib = properties.total_memory / GIB
            kinds[properties.name] = device_kind(torch.device("cuda", number), properties.name, memory_gib)
        devices.append(Device(f"gpu{number}", kinds[properties.name]))
    return topology_with_assumed_links(devices, [gpu_uuid(number) for number in range(count)])


def _gpu_links(devices: Sequence[Device], uuids: Sequence[str]) -> Iterator[Link]:
    """Yield a link for each pair with NVLinks, and one shared link for all other GPUs."""
    known = read_gpu_links(uuids)
    others = set[str]()
    slowest: Connection = "SWITCH"
    for one in range(len(devices)):
        for other in range(one + 1, len(devices)):
            connection, links = known.get((one, other), ("HOST", 0))
            ends = devices[one].name, devices[other].name
            if connection == "NVLINK":
                yield Link(ends, NVLINK_LATENCY_US, links * NVLINK_GB_PER_S)
            else:
                others.update(ends)
                slowest = min(slowest, connection, key=PCIE_GB_PER_S.__getitem__)
    if others:
        yield Link(tuple(sorted(others)), PCIE_LATENCY_US, PCIE_GB_PER_S[slowest], shared=True)
