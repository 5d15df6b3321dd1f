"""Which hardware threads share a core, a cache or memory, as plain data; and machines that nobody here has."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bow.errors import TopologyError

FORMAT = "bow topology"
VERSION = 1


@dataclass(frozen=True)
class HardwareThread:
    """What the system calls a CPU.

    Attributes:
        number: by which the system knows it.
        core: the physical core that it belongs to.
        cache: the largest cache that it shares with other cores, or its own core's where there is none.
        node: the NUMA node whose memory is near.
    """

    number: int
    core: int
    cache: int
    node: int


@dataclass(frozen=True)
class Topology:
    """The hardware threads of a machine.

    Attributes:
        threads: in ascending order of their numbers.

    Raises:
        TopologyError: there are none, a number stands there twice, or a core lies in two caches or nodes.

    Example:
        >>> machine = manycore(tiles=34)
        >>> len(machine.cores), len(machine.threads), machine.sharing(0)
        (68, 272, (0, 1))
    """

    threads: tuple[HardwareThread, ...]

    def __post_init__(self) -> None:
        numbers = [thread.number for thread in self.threads]
        if not numbers:
            raise TopologyError("a topology needs at least 1 hardware thread, got none; list the machine's")
        if numbers != sorted(set(numbers)):
            raise TopologyError("hardware threads must stand in ascending order, each once; sort them by number")
        for what, of in (("caches", _cache_of), ("nodes", _node_of)):
            places: dict[int, int] = {}
            for thread in self.threads:
                if places.setdefault(thread.core, of(thread)) != of(thread):
                    raise TopologyError(f"core {thread.core} lies in two {what}; give all its threads the same")

    @property
    def cores(self) -> tuple[int, ...]:
        """The physical cores, in ascending order."""
        return tuple(sorted({thread.core for thread in self.threads}))

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes, in ascending order."""
        return tuple(sorted({thread.node for thread in self.threads}))

    def threads_of(self, core: int) -> tuple[int, ...]:
        """The numbers of a physical core's hardware threads."""
        return self._numbers(lambda thread: thread.core == core)

    def sharing(self, core: int) -> tuple[int, ...]:
        """The physical cores that share this one's largest shared cache, itself included."""
        cache = next(thread.cache for thread in self.threads if thread.core == core)
        return tuple(sorted({thread.core for thread in self.threads if thread.cache == cache}))

    def node_of(self, core: int) -> int:
        """The NUMA node of a physical core."""
        return next(thread.node for thread in self.threads if thread.core == core)

    def neighbours_first(self) -> tuple[int, ...]:
        """The physical cores, those that share a cache side by side, and those of a node."""
        places = {thread.core: (thread.node, thread.cache, thread.core) for thread in self.threads}
        return tuple(sorted(places, key=places.__getitem__))

    def restricted(self, numbers: Sequence[int]) -> "Topology":
        """What is left where only some hardware threads may be used."""
        allowed = set(numbers)
        return Topology(tuple(thread for thread in self.threads if thread.number in allowed))

    def to_json(self) -> str:
        """The topology as JSON, with a version."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Topology":
        """The topology that `to_json` wrote."""
        try:
            read: Any = json.loads(text)
            is_ours = read["format"] == FORMAT and read["version"] == VERSION
            threads = tuple(HardwareThread(**thread) for thread in read["threads"]) if is_ours else ()
        except (ValueError, KeyError, TypeError) as error:
            raise TopologyError(f"the topology is damaged ({type(error).__name__}: {error}); write it again") from error
        if not is_ours:
            raise TopologyError(f'the text is not a "{FORMAT}" of version {VERSION}; write it again')
        return cls(threads)

    def _numbers(self, wanted: Callable[[HardwareThread], bool]) -> tuple[int, ...]:
        return tuple(thread.number for thread in self.threads if wanted(thread))


def manycore(tiles: int = 34, cores_per_tile: int = 2, threads_per_core: int = 4) -> Topology:
    """A machine like the Xeon Phi of both papers: tiles of two cores that share a cache, four threads a core.

    Hardware threads are numbered as Linux does there: the first of every core, then the second of every core.

    References:
        Tang et al., 2018, section 2; Liu et al., 2019, section II.
    """
    cores = tiles * cores_per_tile
    return Topology(
        tuple(
            HardwareThread(number=turn * cores + core, core=core, cache=core // cores_per_tile, node=0)
            for turn in range(threads_per_core)
            for core in range(cores)
        )
    )


def server(sockets: int = 2, cores_per_socket: int = 16, threads_per_core: int = 2) -> Topology:
    """A server whose sockets each have a cache and memory of their own."""
    cores = sockets * cores_per_socket
    return Topology(
        tuple(
            HardwareThread(
                number=turn * cores + core, core=core, cache=core // cores_per_socket, node=core // cores_per_socket
            )
            for turn in range(threads_per_core)
            for core in range(cores)
        )
    )


def _cache_of(thread: HardwareThread) -> int:
    return thread.cache


def _node_of(thread: HardwareThread) -> int:
    return thread.node
