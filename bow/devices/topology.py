"""Reads which hardware threads of this machine share a core, a cache or memory."""

from pathlib import Path

from bow.devices.cores import available_cores, parse_cores
from bow.schedule import HardwareThread, Topology

CPUS = Path("/sys/devices/system/cpu")
NODES = Path("/sys/devices/system/node")


def read_topology(cpus: Path = CPUS, nodes: Path = NODES) -> Topology:
    """The hardware threads that this process may use, as Linux tells of them.

    What the system does not tell counts as not shared: such a thread is a core with a cache of its own, on node 0.
    """
    near = _nodes(nodes)
    return Topology(
        tuple(
            HardwareThread(
                number,
                core=min(_listed(cpus / f"cpu{number}" / "topology" / "thread_siblings_list", number)),
                cache=_shared_cache(cpus / f"cpu{number}", number),
                node=near.get(number, 0),
            )
            for number in available_cores()
        )
    )


def _shared_cache(cpu: Path, number: int) -> int:
    """The lowest number of those that share the largest cache; of levels that are shared alike, it is the same."""
    found = [(_level(index), min(_listed(index / "shared_cpu_list", number))) for index in cpu.glob("cache/index*")]
    return max(found, default=(0, number))[1]


def _nodes(folder: Path) -> dict[int, int]:
    """By hardware thread: its NUMA node."""
    return {
        number: int(node.name.removeprefix("node"))
        for node in folder.glob("node[0-9]*")
        for number in _listed(node / "cpulist", None)
    }


def _level(index: Path) -> int:
    try:
        return int((index / "level").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _listed(path: Path, otherwise: int | None) -> tuple[int, ...]:
    try:
        return parse_cores(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return () if otherwise is None else (otherwise,)
