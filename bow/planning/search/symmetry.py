"""Which devices could change places without anybody noticing."""

from collections.abc import Iterator

from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.split import Split

Renaming = tuple[int, ...]
"""By device: the number of the device that takes its place."""


def symmetries(topology: DeviceTopology) -> Iterator[Renaming]:
    """The renamings of devices that keep kinds, and routes with all that they share.

    A strategy and the same strategy on renamed devices take the same time, but for ties: tasks that become ready at
    the same nanosecond run in the order of their devices' numbers.

    Example:
        >>> from bow.planning.problem.topology_files import load_topology
        >>> len([*symmetries(load_topology("p100_node"))]), len([*symmetries(load_topology("k80_node"))])
        (24, 8)
    """
    return _extended(topology, (), {})


def renamed(split: Split, renaming: Renaming) -> Split:
    """The same split on other devices."""
    return Split(split.degrees, tuple(renaming[device] for device in split.devices))


def _extended(topology: DeviceTopology, renaming: Renaming, channels: dict[int, int]) -> Iterator[Renaming]:
    """All that begin with some devices' new numbers, and what these say of the channels."""
    device = len(renaming)
    if device == topology.num_devices:
        yield renaming
        return
    for place in range(topology.num_devices):
        if place in renaming or topology.devices[place].kind != topology.devices[device].kind:
            continue
        longer = (*renaming, place)
        found = _channels(topology, longer, channels)
        if found is not None:
            yield from _extended(topology, longer, found)


def _channels(topology: DeviceTopology, renaming: Renaming, known: dict[int, int]) -> dict[int, int] | None:
    """Which channel takes the place of which, with the routes of the last device; None: they do not fit."""
    channels = dict(known)
    last = len(renaming) - 1
    for other in range(last):
        for a, b in ((last, other), (other, last)):
            old, new = topology.route(a, b), topology.route(renaming[a], renaming[b])
            if len(old) != len(new):
                return None
            for one, another in zip(old, new, strict=True):
                if channels.setdefault(one, another) != another or not _alike(topology, one, another):
                    return None
    return channels if len(set(channels.values())) == len(channels) else None


def _alike(topology: DeviceTopology, one: int, another: int) -> bool:
    first, second = topology.channel(one), topology.channel(another)
    return (first.latency_ns, first.ns_per_byte) == (second.latency_ns, second.ns_per_byte)
