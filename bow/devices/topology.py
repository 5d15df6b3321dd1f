"""Which hardware threads of this machine share a core, a cache or memory."""

from dataclasses import dataclass
from pathlib import Path

from bow.devices.cores import available_cores, parse_cores
from bow.errors import TopologyError

CPUS = Path("/sys/devices/system/cpu")
NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class HardwareThread:
    """What the system calls a CPU."""

    number: int  # by which the system knows it
    core: int  # the physical core that it belongs to
    cache: int  # the largest cache that it shares with other cores, or its own core's where there is none
    node: int  # the NUMA node whose memory is near


@dataclass(frozen=True)
class Topology:
    """The hardware threads of a machine, in ascending order of their numbers."""

    threads: tuple[HardwareThread, ...]

    def __post_init__(self) -> None:
        numbers = [thread.number for thread in self.threads]
        if not numbers:
            raise TopologyError("a topology needs at least 1 hardware thread, got none; list the machine's")
        if numbers != sorted(set(numbers)):
            raise TopologyError("hardware threads must stand in ascending order, each once; sort them by number")
        for what, places in (
            ("caches", [(thread.core, thread.cache) for thread in self.threads]),
            ("nodes", [(thread.core, thread.node) for thread in self.threads]),
        ):
            of_core = dict(places)
            for core, place in places:
                if of_core[core] != place:
                    raise TopologyError(f"core {core} lies in two {what}; give all its threads the same")

    @property
    def cores(self) -> tuple[int, ...]:
        return tuple(sorted({thread.core for thread in self.threads}))

    def threads_of(self, core: int) -> tuple[int, ...]:
        return tuple(thread.number for thread in self.threads if thread.core == core)

    def sharing(self, core: int) -> tuple[int, ...]:
        """The physical cores that share this one's largest shared cache, itself included."""
        cache = next(thread.cache for thread in self.threads if thread.core == core)
        return tuple(sorted({thread.core for thread in self.threads if thread.cache == cache}))


def read_topology(cpus: Path = CPUS, nodes: Path = NODES) -> Topology:
    """The hardware threads that this process may use; what Linux does not tell counts as not shared."""
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
