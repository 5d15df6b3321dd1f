"""Devices and the links between them, as plain data; the devices need not exist on this machine."""

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bow.errors import TopologyError

NS_PER_US = 1000.0
GIB = 2**30
TYPICAL_BYTES = 2**20  # the route between two devices is the one with the shortest transfer time for this size


@dataclass(frozen=True)
class DeviceKind:
    """A device model and its performance."""

    name: str  # such as `p100`
    memory_gib: float  # memory of each device (GiB)
    tflops: float  # throughput of large matrix products (10^12 floating-point operations per second)
    gb_per_s: float  # bandwidth of large copies between processor and memory (10^9 bytes per second)
    overhead_us: float = 0.0  # launch overhead of one kernel (microseconds)
    half_outputs: float = 0.0  # output size of a product that reaches half of `tflops`: small ones underuse the device

    def __post_init__(self) -> None:
        for name in ("memory_gib", "tflops", "gb_per_s"):
            _check(f"{name} of device kind {self.name!r}", getattr(self, name), above_zero=True)
        for name in ("overhead_us", "half_outputs"):
            _check(f"{name} of device kind {self.name!r}", getattr(self, name), above_zero=False)


@dataclass(frozen=True)
class Device:
    """A device; it runs one operator at a time."""

    name: str
    kind: DeviceKind
    node: int = 0  # number of its machine


@dataclass(frozen=True)
class Link:
    """A point-to-point connection between devices and switches, or a shared bus."""

    ends: tuple[str, ...]  # names of the devices and switches it connects; two, or more if shared
    latency_us: float  # time from the start of a transfer until its first byte arrives (microseconds)
    gb_per_s: float  # bandwidth (10^9 bytes per second)
    shared: bool = False  # whether all ends and directions share the bandwidth; otherwise it is per direction

    def __post_init__(self) -> None:
        if len(set(self.ends)) < max(2, len(self.ends)):
            raise TopologyError(
                f"a link needs at least two different ends, got {', '.join(self.ends)}; name devices or switches"
            )
        if len(self.ends) > 2 and not self.shared:
            raise TopologyError(
                f"a link that is not shared has two ends, got {', '.join(self.ends)}; define one link per pair"
            )
        _check(f"latency_us of the link between {' and '.join(self.ends)}", self.latency_us, above_zero=False)
        _check(f"gb_per_s of the link between {' and '.join(self.ends)}", self.gb_per_s, above_zero=True)


@dataclass(frozen=True)
class Channel:
    """One direction of a link, or the whole link if it is shared; it carries one transfer at a time."""

    name: str  # such as `gpu0 > gpu1`
    latency_ns: int
    ns_per_byte: float


@dataclass(frozen=True)
class DeviceTopology:
    """Devices and links. Device numbers, as used in partitions, are positions in `devices`.

    A transfer takes the sum of the latencies on its route plus the time of its bytes on the slowest channel, and
    occupies all channels of the route at once. Switches forward transfers; devices do not.

    Attributes:
        name: used in messages.
        devices: the devices, by number.
        links: connections between devices and switches.
        switches: names of intermediate nodes, such as a PCIe switch or a network.
        overlap: whether devices compute while they send and receive; False for CPU processes, which copy every byte
            themselves.
        passing: whether messages and operators that can start overtake earlier ones that are blocked. If False, every
            channel and every device keeps the order in which messages and operators became ready.
        sum_us: overhead (microseconds) of each sum over devices in addition to its messages: starting it and adding up.

    Raises:
        TopologyError: no devices, a duplicate name, a link to an unknown name, or two devices without a route.

    Example:
        >>> kind = DeviceKind("gpu", memory_gib=16, tflops=10, gb_per_s=700)
        >>> pair = DeviceTopology("pair", (Device("a", kind), Device("b", kind)), (Link(("a", "b"), 2.0, 20.0),))
        >>> [pair.channels[number].name for number in pair.route(0, 1)], pair.transfer_ns(10**6, 0, 1)
        (['a > b'], 52000)

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 3.1.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    switches: tuple[str, ...] = ()
    overlap: bool = True
    sum_us: float = 0.0
    passing: bool = False

    def __post_init__(self) -> None:
        for name in ("overlap", "passing"):
            if not isinstance(getattr(self, name), bool):
                raise TopologyError(
                    f"{name} of topology {self.name!r} must be true or false, got {getattr(self, name)!r}"
                )
        _check(f"sum_us of topology {self.name!r}", self.sum_us, above_zero=False)
        if not self.devices:
            raise TopologyError(f"topology {self.name!r} has no devices; list at least 1")
        names = [device.name for device in self.devices] + list(self.switches)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TopologyError(f"two devices or switches are called {twice!r}; use unique names")
        for link in self.links:
            unknown = next((end for end in link.ends if end not in names), None)
            if unknown is not None:
                raise TopologyError(f"a link ends at {unknown!r}, which is neither a device nor a switch; add it")
        for a, b in itertools.permutations(range(self.num_devices), 2):
            if (a, b) not in self._routes:
                first, second = self.devices[a].name, self.devices[b].name
                raise TopologyError(
                    f"no link leads from {first!r} to {second!r}, directly or through switches; add one to the topology"
                )

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """Two channels for each link, or one if it is shared, in the order of the links."""
        return tuple(
            Channel(name, round(link.latency_us * NS_PER_US), 1 / link.gb_per_s)
            for link in self.links
            for name in _channel_names(link)
        )

    @cached_property
    def of_each_kind(self) -> tuple[int, ...]:
        """The first device of each kind, ascending."""
        kinds = [device.kind for device in self.devices]
        return tuple(kinds.index(kind) for kind in dict.fromkeys(kinds))

    def memory_bytes(self, device: int) -> int:
        return int(self.devices[device].kind.memory_gib * GIB)

    def route(self, a: int, b: int) -> tuple[int, ...]:
        """Return the channel numbers on the route from device `a` to device `b`; empty if they are the same."""
        return () if a == b else self._routes[a, b]

    def transfer_ns(self, num_bytes: int, a: int, b: int) -> int:
        """Return the duration of a transfer without contention; 0 from a device to itself."""
        route = [self.channels[number] for number in self.route(a, b)]
        if not route:
            return 0
        latency = sum(channel.latency_ns for channel in route)
        return latency + math.ceil(num_bytes * max(channel.ns_per_byte for channel in route))

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        members: dict[int, list[int]] = {}
        for number, device in enumerate(self.devices):
            members.setdefault(device.node, []).append(number)
        return tuple(tuple(members[node]) for node in sorted(members))

    def groups(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Divide the devices into `count` groups of equal size and kind, one for each learner."""
        size, rest = divmod(self.num_devices, max(count, 1))
        if count < 1 or rest:
            raise TopologyError(
                f"{self.num_devices} devices cannot be divided among {count} learners; give a divisor of "
                f"{self.num_devices}"
            )
        groups = tuple(tuple(range(first, first + size)) for first in range(0, self.num_devices, size))
        kinds = [[self.devices[number].kind for number in group] for group in groups]
        if any(each != kinds[0] for each in kinds):
            raise TopologyError(f"{count} learners need equal groups of devices, and the devices' kinds differ; give 1")
        return groups

    def restricted(self, devices: Sequence[int]) -> "DeviceTopology":
        kept = tuple(self.devices[number] for number in devices)
        places = {device.name for device in kept} | set(self.switches)
        ends = [tuple(end for end in link.ends if end in places) for link in self.links]
        links = (replace(link, ends=left) for link, left in zip(self.links, ends, strict=True) if len(left) > 1)
        return replace(self, devices=kept, links=tuple(links))

    @cached_property
    def _routes(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """Channel numbers of the route, by pair of devices."""
        ways: dict[str, list[tuple[str, int]]] = {}
        number = 0
        for link in self.links:
            for turn, (start, end) in enumerate(itertools.permutations(link.ends, 2)):
                ways.setdefault(start, []).append((end, number if link.shared else number + turn))
            number += len(_channel_names(link))
        places = {device.name: number for number, device in enumerate(self.devices)}
        return {
            (place, places[end]): route
            for name, place in places.items()
            for end, route in self._from(name, ways)
            if end in places
        }

    def _from(self, start: str, ways: Mapping[str, list[tuple[str, int]]]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield each reachable device or switch with its fastest route (Dijkstra's algorithm)."""
        inner, done = set(self.switches), set[str]()
        ahead: list[tuple[float, tuple[int, ...], str]] = [(0.0, (), start)]
        while ahead:
            time, route, place = heapq.heappop(ahead)
            if place in done:
                continue
            done.add(place)
            if place != start:
                yield place, route
            if place != start and place not in inner:
                continue
            for end, number in ways.get(place, ()):
                channel = self.channels[number]
                later = time + channel.latency_ns + TYPICAL_BYTES * channel.ns_per_byte
                heapq.heappush(ahead, (later, (*route, number), end))


def _channel_names(link: Link) -> tuple[str, ...]:
    return (" - ".join(link.ends),) if link.shared else (" > ".join(link.ends), " > ".join(reversed(link.ends)))


def _check(what: str, value: object, above_zero: bool) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (above_zero and value == 0):  # type: ignore[operator]
        raise TopologyError(f"{what} must be a number {'above' if above_zero else 'of at least'} 0, got {value!r}")
