"""How long it takes to move bytes: between two devices, and to sum them over several."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bow.planning.problem.device_topology import NS_PER_US, DeviceTopology


@dataclass(frozen=True)
class Collective:
    """A sum over some devices, which all of them get.

    In a ring of n devices each sends 1/n of the bytes to the next, 2 (n - 1) times. In a tree all bytes go up and down
    once. Large sums are faster in the ring, small ones in the tree; whichever is faster is taken:

        ring = 2 (n - 1) latency + 2 (n - 1) / n bytes ns_per_byte
        tree = 2 ceil(log2 n) latency + 2 bytes ns_per_byte

    Either takes what every sum takes beside its messages on top.

    Attributes:
        members: how many devices take part.
        channels: that are occupied: all between neighbours in the ring.
        latency_ns: the largest between neighbours.
        ns_per_byte: of the slowest channel, times the number of neighbours that share it.
        alone_ns: what every sum takes beside its messages.

    References:
        Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """

    members: int
    channels: tuple[int, ...]
    latency_ns: int
    ns_per_byte: float
    alone_ns: int = 0

    @classmethod
    def over(cls, topology: DeviceTopology, devices: Sequence[int]) -> "Collective":
        """The sum over some devices, in a ring in the order of their numbers."""
        ring = sorted(devices)
        routes = [topology.route(a, b) for a, b in itertools.pairwise([*ring, ring[0]])]
        uses = Counter(channel for route in routes for channel in route)
        return cls(
            members=len(ring),
            channels=tuple(sorted(uses)),
            latency_ns=max(sum(topology.channel(channel).latency_ns for channel in route) for route in routes),
            ns_per_byte=max(count * topology.channel(channel).ns_per_byte for channel, count in uses.items()),
            alone_ns=round(topology.sum_us * NS_PER_US),
        )

    def time_ns(self, num_bytes: int) -> int:
        """How long a sum of so many bytes takes, with the channels for itself."""
        steps = 2 * (self.members - 1)
        ring = steps * self.latency_ns + math.ceil(steps / self.members * num_bytes * self.ns_per_byte)
        hops = 2 * math.ceil(math.log2(self.members))
        return self.alone_ns + min(ring, hops * self.latency_ns + math.ceil(2 * num_bytes * self.ns_per_byte))

    def moved_bytes(self, num_bytes: int) -> int:
        """What all members send together."""
        return 2 * (self.members - 1) * num_bytes
