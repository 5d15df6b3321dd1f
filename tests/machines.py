"""Machines that nobody here has."""

from __future__ import annotations

from bow.devices.topology import HardwareThread, Topology


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
