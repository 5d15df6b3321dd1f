"""Topologies of machines that are not available."""

from __future__ import annotations

from bow.devices.cores import HardwareThread


def manycore(tiles: int = 34, cores_per_tile: int = 2, threads_per_core: int = 4) -> tuple[HardwareThread, ...]:
    """A machine like the Xeon Phi of both papers: tiles of two cores that share a cache, four threads per core.

    Hardware threads are numbered as by Linux there: the first of every core, then the second of every core.

    References:
        Tang et al., 2018, section 2; Liu et al., 2019, section II.
    """
    cores = tiles * cores_per_tile
    return tuple(
        HardwareThread(number=turn * cores + core, core=core, cache=core // cores_per_tile * cores_per_tile)
        for turn in range(threads_per_core)
        for core in range(cores)
    )


def server(sockets: int = 2, cores_per_socket: int = 16, threads_per_core: int = 2) -> tuple[HardwareThread, ...]:
    """A server with a cache for each socket."""
    return manycore(sockets, cores_per_socket, threads_per_core)
