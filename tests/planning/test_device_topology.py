from __future__ import annotations

import pytest

from bow.errors import TopologyError
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link

KIND = DeviceKind("kind", memory_gib=2, tflops=1, gb_per_s=100)


def star(*names: str, latency_us: float = 1.0, gb_per_s: float = 10.0) -> DeviceTopology:
    links = tuple(Link((name, "hub"), latency_us, gb_per_s) for name in names)
    return DeviceTopology("star", tuple(Device(name, KIND) for name in names), links, ("hub",))


def names_of(topology: DeviceTopology, a: int, b: int) -> list[str]:
    return [topology.channels[number].name for number in topology.route(a, b)]


def test_route_leads_over_switches_and_takes_one_channel_of_each_link() -> None:
    topology = star("a", "b", "c")
    assert names_of(topology, 0, 2) == ["a > hub", "hub > c"]
    assert names_of(topology, 2, 0) == ["c > hub", "hub > a"]
    assert len(topology.channels) == 6


def test_transfer_takes_all_latencies_and_the_slowest_channel() -> None:
    links = (Link(("a", "hub"), 1.0, 10.0), Link(("hub", "b"), 3.0, 2.0))
    topology = DeviceTopology("line", (Device("a", KIND), Device("b", KIND)), links, ("hub",))
    assert topology.transfer_ns(1000, 0, 1) == 1000 + 3000 + 500
    assert topology.transfer_ns(1001, 0, 1) == 1000 + 3000 + 501  # 500.5 ns, rounded up
    assert topology.transfer_ns(1000, 1, 1) == 0
    assert topology.route(1, 1) == ()


def test_direct_link_is_preferred_to_a_slower_way_over_a_switch() -> None:
    hub = star("a", "b", "c")
    topology = DeviceTopology("both", hub.devices, (*hub.links, Link(("a", "b"), 1.0, 20.0)), hub.switches)
    assert names_of(topology, 0, 1) == ["a > b"]
    assert names_of(topology, 0, 2) == ["a > hub", "hub > c"]


def test_devices_do_not_forward() -> None:
    links = (Link(("a", "b"), 1.0, 10.0), Link(("b", "c"), 1.0, 10.0))
    with pytest.raises(TopologyError, match="no link leads from 'a' to 'c'"):
        DeviceTopology("chain", tuple(Device(name, KIND) for name in "abc"), links)


def test_shared_link_is_one_channel_for_all_that_it_connects() -> None:
    bus = Link(("a", "b", "c"), 5.0, 1.0, shared=True)
    topology = DeviceTopology("bus", tuple(Device(name, KIND) for name in "abc"), (bus,))
    routes = {topology.route(a, b) for a in range(3) for b in range(3) if a != b}
    assert routes == {(0,)}
    assert len(topology.channels) == 1


def test_memory_is_in_bytes() -> None:
    assert star("a", "b").memory_bytes(1) == 2 * 2**30


def test_learners_get_equal_groups_of_neighbours() -> None:
    assert star("a", "b", "c", "d").groups(2) == ((0, 1), (2, 3))


def test_devices_that_cannot_be_divided_among_learners_are_refused() -> None:
    with pytest.raises(TopologyError, match="3 devices cannot be divided among 2 learners"):
        star("a", "b", "c").groups(2)
    with pytest.raises(TopologyError, match="cannot be divided among 0 learners"):
        star("a", "b").groups(0)
    other = DeviceKind("other", memory_gib=1, tflops=1, gb_per_s=1)
    mixed = DeviceTopology("mixed", (Device("a", KIND), Device("b", other)), (Link(("a", "b"), 1.0, 1.0),))
    with pytest.raises(TopologyError, match="the devices' kinds differ"):
        mixed.groups(2)


def test_nodes_group_devices_by_machine() -> None:
    devices = (Device("a", KIND, node=1), Device("b", KIND, node=0), Device("c", KIND, node=1))
    topology = DeviceTopology("nodes", devices, (Link(("a", "b", "c"), 1.0, 1.0, shared=True),))
    assert topology.nodes == ((1,), (0, 2))


def test_restricted_topology_keeps_routes_between_what_is_left() -> None:
    whole = star("a", "b", "c")
    part = whole.restricted((2, 0))
    assert [device.name for device in part.devices] == ["c", "a"]
    assert names_of(part, 0, 1) == ["c > hub", "hub > a"]
    bus = DeviceTopology(
        "bus", tuple(Device(name, KIND) for name in "abc"), (Link(("a", "b", "c"), 5.0, 1.0, shared=True),)
    )
    assert bus.restricted((0, 1)).links[0].ends == ("a", "b")
    alone = DeviceTopology("alone", whole.devices, whole.links, whole.switches, overlap=False)
    assert not alone.restricted((0, 1)).overlap


@pytest.mark.parametrize(
    ("devices", "links", "switches", "message"),
    [
        ((), (), (), "no devices"),
        (("a", "a"), (), (), "called 'a'"),
        (("a",), (), ("a",), "called 'a'"),
        (("a", "b"), (), (), "no link leads from 'a' to 'b'"),
        (("a",), (("a", "z"),), (), "ends at 'z'"),
    ],
)
def test_wrong_topology_gets_one_sentence(
    devices: tuple[str, ...], links: tuple[tuple[str, str], ...], switches: tuple[str, ...], message: str
) -> None:
    with pytest.raises(TopologyError, match=message) as raised:
        DeviceTopology(
            "wrong",
            tuple(Device(name, KIND) for name in devices),
            tuple(Link(ends, 1.0, 1.0) for ends in links),
            switches,
        )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("ends", "latency_us", "gb_per_s", "shared"),
    [
        (("a", "a"), 1.0, 1.0, False),
        (("a",), 1.0, 1.0, True),
        (("a", "b", "c"), 1.0, 1.0, False),
        (("a", "b"), -1.0, 1.0, False),
        (("a", "b"), 1.0, 0.0, False),
        (("a", "b"), 1.0, float("nan"), False),
    ],
)
def test_wrong_link_is_refused(ends: tuple[str, ...], latency_us: float, gb_per_s: float, shared: bool) -> None:
    with pytest.raises(TopologyError):
        Link(ends, latency_us, gb_per_s, shared)


@pytest.mark.parametrize("field", ["memory_gib", "tflops", "gb_per_s"])
def test_device_kind_without_speed_or_memory_is_refused(field: str) -> None:
    values = {"memory_gib": 1.0, "tflops": 1.0, "gb_per_s": 1.0, field: 0.0}
    with pytest.raises(TopologyError, match=f"{field} of device kind 'slow' must be a number above 0"):
        DeviceKind("slow", **values)
