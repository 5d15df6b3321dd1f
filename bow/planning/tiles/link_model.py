"""Link model: how long transfers between the processes of a machine take, as latency and time a byte."""

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from bow.planning.problem.device_topology import TYPICAL_BYTES, DeviceTopology, Link
from bow.planning.tiles.process_group import Message, ProcessGroup, wait_for

SIZES = tuple(2**exponent for exponent in range(8, 21, 2))
"""Bytes of the transfers that show latency and bandwidth: 256 bytes to 1 MiB, as parts of tensors have."""

LinkModels: TypeAlias = dict[tuple[int, int], tuple[float, float]]
"""By pair of devices: latency in nanoseconds, and nanoseconds for each byte."""

REPEATS = 25

WARM_UP = 5


def measure_idle_links(group: ProcessGroup) -> LinkModels:
    """By pair of devices: latency in nanoseconds, and nanoseconds for each byte, of messages to and fro."""
    # Every pair sends to and fro as the tile runtime does it: every message into fresh memory. What the runtime,
    # torch.distributed and the system take for a message on either side is in the latency. One pair at a time: two
    # pairs may share a bus, and processes share the memory.
    # All processes of the group call this; they get the same.
    own = {}
    for pair in itertools.combinations(range(group.size), 2):
        group.all_gather(None)  # no pair begins before the one in front of it is done
        own[pair] = _pair_model(group, *pair)
    told = group.all_gather({pair: found for pair, found in own.items() if found is not None and pair[0] == group.rank})
    return dict(sorted((pair, each) for of_device in told for pair, each in of_device.items()))


def measured_topology(known: DeviceTopology, link_models: LinkModels, sum_us: float = 0.0) -> DeviceTopology:
    """A topology with what was measured between its devices on its links."""
    # A link is as fast as the fastest pair of devices that it joins, alone on it: what pairs share, such as a PCIe bus,
    # they still share.
    of_channel = [link for link in known.links for _ in range(1 if link.shared else 2)]
    found = defaultdict(list)
    for pair, model in link_models.items():
        for channel in known.route(*pair):
            found[of_channel[channel]].append(model)
    links = tuple(_measured(link, found[link]) if link in found else link for link in known.links)
    return replace(known, links=links, sum_us=sum_us)


def fitted_link(sizes: Sequence[int], times_ns: Sequence[float]) -> tuple[float, float]:
    """Latency in nanoseconds, and nanoseconds for each byte: the line with the least squares of relative errors."""
    # Each equation latency / time + ns_per_byte * size / time = 1 counts alike: small messages, of which there are
    # many, would count for nothing beside large ones.
    rows = torch.tensor([[1 / time, size / time] for size, time in zip(sizes, times_ns, strict=True)]).double()
    latency, ns_per_byte = torch.linalg.lstsq(rows, torch.ones(len(sizes), 1).double()).solution.flatten().tolist()
    return round(max(latency, 0.0), 3), round(max(ns_per_byte, 1e-6), 6)


def _measured(link: Link, link_models: Sequence[tuple[float, float]]) -> Link:
    latency_ns, ns_per_byte = min(link_models, key=lambda model: model[0] + TYPICAL_BYTES * model[1])
    return replace(link, latency_us=round(latency_ns / 1e3, 3), gb_per_s=round(1 / ns_per_byte, 6))


def _pair_model(group: ProcessGroup, first: int, second: int) -> tuple[float, float] | None:
    """Latency and nanoseconds for each byte between two devices; None on all others."""
    if group.rank not in (first, second):
        return None
    return fitted_link(SIZES, [_one_way_ns(group, first, second, num_bytes) for num_bytes in SIZES])


def _one_way_ns(group: ProcessGroup, first: int, second: int, num_bytes: int) -> float:
    """Half of the median time there and back."""
    other = second if group.rank == first else first
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=group.device)
    times = []
    for turn in range(WARM_UP + REPEATS):
        start = time.perf_counter_ns()
        for is_there in (True, False):
            _pass(group, source, other, sends=is_there == (group.rank == first))
        if group.device.type == "cuda":
            torch.cuda.synchronize(group.device)
        if turn >= WARM_UP:
            times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 2


def _pass(group: ProcessGroup, source: torch.Tensor, other: int, sends: bool) -> None:
    nothing: Sequence[Message] = []
    message: Sequence[Message] = [(source.clone() if sends else torch.empty_like(source), other, 0)]
    leaving, arriving = group.exchange(message if sends else nothing, nothing if sends else message)
    wait_for([*leaving, *arriving])
