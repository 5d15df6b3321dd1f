"""Measure and cache the cost of messages (latency and time per byte) and sums between devices, idle or training."""

import contextlib
import functools
import itertools
import math
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn

from bow.compiling import cache_folder
from bow.devices import available_cores, processor
from bow.devices.links import gpu_uuid
from bow.errors import BowError
from bow.files import JsonCache
from bow.planning.problem.device_topology import TYPICAL_BYTES, DeviceTopology, Link
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Partition, Split
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.tiles.capture import CapturedOperators, capture_operators
from bow.planning.tiles.communication import Message, ProcessGroup, synchronise, wait_for
from bow.planning.tiles.program import tile_program
from bow.planning.tiles.runtime import TileRuntime

T = TypeVar("T")


class Measurements:
    """The cached measurements for a description, in a folder of the cache."""

    def __init__(self, folder: str, *described: object) -> None:
        bow_version = sys.modules["bow"].__version__  # importing bow here would invert the layers
        self._folder, self._key = folder, [*described, torch.__version__, bow_version]

    def load(self, make: Callable[[Any], T | None]) -> T | None:
        with contextlib.suppress(BowError):  # no cache folder
            return JsonCache(cache_folder() / self._folder).find(self._key, make)
        return None

    def keep(self, value: Any) -> None:
        """Store a value; raise `OSError` or `BowError` if the cache cannot be written."""
        JsonCache(cache_folder() / self._folder).store(self._key, value)


# Bytes of the transfers that latency and bandwidth are fitted to: 256 bytes to 1 MiB, as of typical tensor parts.
SIZES = tuple(2**exponent for exponent in range(8, 21, 2))
LinkModels: TypeAlias = dict[tuple[int, int], tuple[float, float]]  # by pair of devices: latency (ns), ns per byte
IDLE_REPEATS = 25
IDLE_WARM_UP = 5


def measure_idle_links(group: ProcessGroup) -> LinkModels:
    """Fit latency and time per byte to ping-pong messages of every pair of devices, otherwise idle; collective."""
    # As in the tile runtime, every message goes to newly allocated memory. The latency includes the overhead of
    # runtime, torch.distributed and system on both sides. One pair at a time: pairs may share a bus, and processes
    # share the memory.
    own = {}
    for pair in itertools.combinations(range(group.size), 2):
        group.all_gather(None)  # barrier: the previous pair is done
        own[pair] = _pair_model(group, *pair)
    gathered = group.all_gather(
        {pair: found for pair, found in own.items() if found is not None and pair[0] == group.rank}
    )
    return dict(sorted((pair, each) for of_device in gathered for pair, each in of_device.items()))


def measured_topology(known: DeviceTopology, link_models: LinkModels, sum_us: float = 0.0) -> DeviceTopology:
    # A link gets the speed of its fastest pair of devices, which is measured without contention: pairs that share a
    # link, such as a PCIe bus, still share it.
    of_channel = [link for link in known.links for _ in range(1 if link.shared else 2)]
    found = defaultdict(list)
    for pair, model in link_models.items():
        for channel in known.route(*pair):
            found[of_channel[channel]].append(model)
    links = tuple(_measured(link, found[link]) if link in found else link for link in known.links)
    return replace(known, links=links, sum_us=sum_us)


def fitted_link(sizes: Sequence[int], times_ns: Sequence[float]) -> tuple[float, float]:
    """Fit latency (ns) and time per byte (ns) by least squares of relative errors."""
    # Equations latency / time + ns_per_byte * size / time = 1: with absolute errors, small messages, the most frequent,
    # would have no weight.
    rows = torch.tensor([[1 / time, size / time] for size, time in zip(sizes, times_ns, strict=True)]).double()
    latency, ns_per_byte = torch.linalg.lstsq(rows, torch.ones(len(sizes), 1).double()).solution.flatten().tolist()
    return round(max(latency, 0.0), 3), round(max(ns_per_byte, 1e-6), 6)


def _measured(link: Link, link_models: Sequence[tuple[float, float]]) -> Link:
    latency_ns, ns_per_byte = min(link_models, key=lambda model: model[0] + TYPICAL_BYTES * model[1])
    return replace(link, latency_us=round(latency_ns / 1e3, 3), gb_per_s=round(1 / ns_per_byte, 6))


def _pair_model(group: ProcessGroup, first: int, second: int) -> tuple[float, float] | None:
    """Return latency (ns) and time per byte (ns) between two devices; None on all other devices."""
    if group.rank not in (first, second):
        return None
    return fitted_link(SIZES, [_one_way_ns(group, first, second, num_bytes) for num_bytes in SIZES])


def _one_way_ns(group: ProcessGroup, first: int, second: int, num_bytes: int) -> float:
    other = second if group.rank == first else first
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=group.device)
    times = []
    for turn in range(IDLE_WARM_UP + IDLE_REPEATS):
        start = time.perf_counter_ns()
        for is_there in (True, False):
            _transfer_once(group, source, other, sends=is_there == (group.rank == first))
        synchronise(group.device)
        if turn >= IDLE_WARM_UP:
            times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 2


def _transfer_once(group: ProcessGroup, source: torch.Tensor, other: int, sends: bool) -> None:
    nothing: Sequence[Message] = []
    message: Sequence[Message] = [(source.clone() if sends else torch.empty_like(source), other, 0)]
    leaving, arriving = group.exchange(message if sends else nothing, nothing if sends else message)
    wait_for([*leaving, *arriving])


LAYERS = 8
# Samples and width of activations, half of which is one message: 1, 8, 32, 128 and 512 KiB.
SHAPES = ((8, 64), (32, 128), (64, 256), (128, 512), (256, 1024))
CHANNELS = 64  # channels, and also samples, of the benchmark's batch norms
SUMS = 5  # of a batch norm split by samples: forward and backward for each half of the channels, and the weights'
TURNS, FEW_TURNS = 11, 3  # timed turns for a plan, and before a training without cached measurements
WARM_UP = 2
PER_BYTE_NS = (1e-6, 1e6)  # valid range of cached values: 1 KB/s to 1 PB/s


@dataclass(frozen=True)
class _Case:
    """Two partitions of the same chain of layers: one without communication between layers, and one with."""

    local: TileRuntime  # activations stay on their device
    communicating: TileRuntime  # the devices communicate at every layer
    count: int  # additional messages, or additional sums, of `communicating` in a step
    num_bytes: int  # of each message
    batch: tuple[torch.Tensor, torch.Tensor]


def measure_busy_links(
    group: ProcessGroup, *, shapes: Sequence[tuple[int, int]] = SHAPES, turns: int = TURNS
) -> tuple[LinkModels, float]:
    """Return link models during training, and the overhead (us) of a sum besides its messages; collective."""
    # Idle links (`measure_idle_links`) are a lower bound: during training, the runtime's work for each message keeps
    # both devices from computing, and caches are cold. Only the first two devices are measured in training
    # (`LinkBenchmark`); their excess over their idle model is added to the idle model of every pair.
    # CPU processes do not compute while they send and receive, because they copy every byte themselves; this limits
    # them, not the memory bandwidth.
    if group.size == 1:
        return {}, 0.0
    benchmark = LinkBenchmark(group, shapes)
    for turn in range(WARM_UP + turns):
        benchmark.turn(is_timed=turn >= WARM_UP)
    link_model, sum_us = benchmark.result()
    link_models = {(0, 1): link_model}
    if group.size > 2:
        idle = measure_idle_links(group)
        extra = tuple(max(0.0, found - alone) for found, alone in zip(link_model, idle[0, 1], strict=True))
        link_models = {pair: (latency + extra[0], per_byte + extra[1]) for pair, (latency, per_byte) in idle.items()}
    return link_models, sum_us


class LinkBenchmark:
    """Delays that a message, and a small sum, cause on the first two devices of a group during training."""

    # Messages: a chain of linear layers is split by samples in both cases of `_Case`: once every device keeps its
    # samples, and once the devices swap them after every layer. The difference in time, divided by the number of
    # messages, is how long a message keeps both devices from computing. Sums: a chain of batch norms, each split into
    # four tiles, halves of the samples by halves of the channels: once every device has half of the channels, which
    # needs no sums over devices, and once half of the samples.
    #
    # Collective: all processes of the group construct one and call its methods together.

    def __init__(self, group: ProcessGroup, shapes: Sequence[tuple[int, int]] = SHAPES) -> None:
        self._group = group
        self._cases = [*(_message_case(group, samples, width) for samples, width in shapes), _sum_case(group)]
        self._longer_ns: list[list[int]] = [[] for _ in self._cases]

    def turn(self, is_timed: bool = True) -> None:
        """Time one step of both partitions of each chain; call repeatedly, since machine speed fluctuates."""
        for case, longer_ns in zip(self._cases, self._longer_ns, strict=True):
            local_ns, communicating_ns = (
                _step_ns(self._group, each, case) for each in (case.local, case.communicating)
            )
            if is_timed:
                longer_ns.append(communicating_ns - local_ns)

    def result(self) -> tuple[tuple[float, float], float]:
        """Return latency and time per byte (ns) of a message, and the overhead (us) of a sum besides its two."""
        of_all = self._group.all_gather(self._longer_ns)
        *delays_ns, of_sum_ns = (
            max(1.0, statistics.median(map(max, zip(*of_devices, strict=True))) / case.count)
            for case, of_devices in zip(self._cases, zip(*of_all, strict=True), strict=True)
        )
        link_model = fitted_link([case.num_bytes for case in self._cases[:-1]], delays_ns)
        return link_model, round(max(0.0, of_sum_ns - 2 * link_model[0]) / 1e3, 3)


def _step_ns(group: ProcessGroup, runtime: TileRuntime, case: _Case) -> int:
    """Time the second of two consecutive steps; the first one warms the caches."""
    for step in range(2):
        group.sum_all([torch.zeros(1, device=group.device)])  # barrier
        began = time.perf_counter_ns()
        runtime.step(case.batch, step)
        synchronise(group.device)
    return time.perf_counter_ns() - began


def _message_case(group: ProcessGroup, samples: int, width: int) -> _Case:
    model, batch, captured = _chain(samples, width)
    graph = captured.graph
    straight = data_parallel(graph, RULES, 2)
    crossed = tuple(_crossed(straight, [operator.kind == "linear" for operator in graph.operators]))
    count = _messages(graph, crossed) - _messages(graph, straight)
    one, other = (_runtime(captured, splits, model, group) for splits in (straight, crossed))
    return _Case(one, other, count, samples // 2 * width * 4, batch)


def _sum_case(group: ProcessGroup) -> _Case:
    model, batch, captured = _chain(CHANNELS, CHANNELS, norms=True)
    by_channels, by_samples = (tuple(_quartered(captured.graph, devices)) for devices in ((0, 1, 0, 1), (0, 0, 1, 1)))
    one, other = (_runtime(captured, splits, model, group) for splits in (by_channels, by_samples))
    return _Case(one, other, SUMS * LAYERS, 0, batch)


def _runtime(
    captured: CapturedOperators, splits: tuple[Split, ...], model: nn.Module, group: ProcessGroup
) -> TileRuntime:
    optimizer = functools.partial(torch.optim.SGD, lr=0.01)
    return TileRuntime(captured, Partition(captured.graph.hash, splits), model, optimizer, group)


def _quartered(graph: OperatorGraph, devices: tuple[int, ...]) -> Iterator[Split]:
    """Split matrices into four tiles; leave everything else whole on the first device."""
    for operator in graph.operators:
        rank = len(graph.tensors[operator.outputs[0]].shape)
        yield Split((2, 2), devices) if rank == 2 else Split((1,) * rank, (0,))


@functools.cache
def _chain(
    samples: int, width: int, norms: bool = False
) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], CapturedOperators]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*(nn.BatchNorm1d(width) if norms else nn.Linear(width, width) for _ in range(LAYERS)))
    batch = torch.randn(samples, width, generator=generator), torch.randn(samples, width, generator=generator)
    return model, batch, capture_operators(model, batch, nn.functional.mse_loss)


def _messages(graph: OperatorGraph, splits: Sequence[Split]) -> int:
    program = tile_program(graph, splits, RULES)
    return sum(len(parts) for moved in (program.sends, program.gradient_sends) for parts in moved)


def _crossed(splits: Sequence[Split], is_layer: Sequence[bool]) -> Iterator[Split]:
    """Yield the same splits with the devices of every other layer reversed."""
    turned = False
    for split, layer in zip(splits, is_layer, strict=True):
        yield Split(split.degrees, split.devices[::-1]) if layer and turned else split
        turned ^= layer


@dataclass(frozen=True)
class DeviceInventory:
    """The hardware of a group's devices, the same in all processes; part of the cache key."""

    nodes: tuple[int, ...]  # [device]: number of the first device on the same machine
    makes: tuple[str, ...]  # [device]: name of the GPU, or processor and number of cores
    gpus: tuple[str, ...] = ()  # [device]: UUID; empty for CPU cores

    @classmethod
    def of(cls, group: ProcessGroup) -> "DeviceInventory":
        if group.device.type == "cuda":
            make, gpu = torch.cuda.get_device_name(group.device), gpu_uuid(group.device)
        else:
            make, gpu = f"{processor()}, {len(available_cores())} cores", ""
        hosts, makes, gpus = zip(*group.all_gather((platform.node(), make, gpu)), strict=True)
        return cls(tuple(map(hosts.index, hosts)), makes, gpus if all(gpus) else ())


def cached_busy_links(
    group: ProcessGroup,
    inventory: DeviceInventory,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    turns: int = FEW_TURNS,
) -> tuple[LinkModels, float]:
    """Return the cached result of `measure_busy_links`, measuring and caching it if there is none; collective."""
    if group.size == 1:
        return {}, 0.0
    cache = Measurements("links", *astuple(inventory))
    kept = group.all_gather(None if group.rank else cache.load(functools.partial(_read_links, size=group.size)))[0]
    if kept is not None:
        return kept
    with torch.random.fork_rng(devices=[]):  # measuring must not change the training's random numbers
        link_models, sum_us = measure_busy_links(group, shapes=shapes, turns=turns)
    _chain.cache_clear()  # free the layers, which plans keep for their next measurement
    if not group.rank:
        _keep(cache, link_models, sum_us)
    return link_models, sum_us


def cache_busy_links(group: ProcessGroup, link_models: LinkModels, sum_us: float) -> None:
    """Cache a result of `measure_busy_links`, replacing the cached one; collective."""
    cache = Measurements("links", *astuple(DeviceInventory.of(group)))
    if not group.rank:
        _keep(cache, link_models, sum_us)


def _keep(cache: Measurements, link_models: LinkModels, sum_us: float) -> None:
    if link_models:
        with contextlib.suppress(OSError, BowError):  # without a cache it is measured again next time
            cache.keep({"pairs": [[*pair, *model] for pair, model in link_models.items()], "sum_us": sum_us})


def _read_links(content: Any, size: int) -> tuple[LinkModels, float] | None:
    """Parse cached link models of `size` devices; None if they are not plausible."""
    models = {(a, b): (float(latency), float(per_byte)) for a, b, latency, per_byte in content["pairs"]}
    sum_us, (fastest, slowest) = float(content["sum_us"]), PER_BYTE_NS
    pairs = [(a, b) for a, b, *_ in content["pairs"]]
    if pairs != list(itertools.combinations(range(size), 2)) or not 0 <= sum_us < math.inf:
        return None
    if not all(0 <= latency < math.inf and fastest <= per_byte <= slowest for latency, per_byte in models.values()):
        return None
    return models, sum_us
