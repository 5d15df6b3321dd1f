"""Sums over devices take what the slowest channel of the ring, or the tree, takes."""

from __future__ import annotations

import dataclasses

import pytest

from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.simulator.step_model import Collective
from tests.planning.small_steps import topology

KIND = DeviceKind("kind", 1.0, 1.0, 1.0)


def switched(devices: int) -> DeviceTopology:
    """Each device has a line of its own to a switch: 1 us and 1 ns for each byte on each."""
    names = [f"d{number}" for number in range(devices)]
    links = tuple(Link((name, "switch"), 1.0, 1.0) for name in names)
    return DeviceTopology("switched", tuple(Device(name, KIND) for name in names), links, ("switch",))


def test_a_ring_sends_its_share_of_the_volume_at_full_bandwidth() -> None:
    ring = Collective.over(switched(4), (0, 1, 2, 3))
    assert len(ring.channels) == 8
    assert ring.time_ns(4_000_000) == 2 * 3 * 2000 + 2 * 3 * 1_000_000
    assert ring.moved_bytes(100) == 600


def test_small_sums_go_through_a_tree() -> None:
    assert Collective.over(switched(8), tuple(range(8))).time_ns(8) == 2 * 3 * 2000 + 16


def test_every_sum_takes_something_beside_its_messages() -> None:
    slow = dataclasses.replace(switched(4), sum_us=5.0)
    for num_bytes in (8, 4_000_000):
        alone = Collective.over(switched(4), (0, 1)).time_ns(num_bytes)
        assert Collective.over(slow, (0, 1)).time_ns(num_bytes) == alone + 5000


def test_only_members_take_part_in_whatever_order_they_are_named() -> None:
    some = Collective.over(switched(4), (0, 3, 2))
    assert some == Collective.over(switched(4), (2, 0, 3))
    assert (some.members, len(some.channels)) == (3, 6)


def test_who_shares_a_channel_gets_a_part_of_its_bandwidth() -> None:
    bus = Collective.over(topology(4), (0, 1, 2, 3))
    assert bus.channels == (0,)
    assert bus.ns_per_byte == pytest.approx(4.0)
