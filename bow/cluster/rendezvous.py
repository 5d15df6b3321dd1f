"""Rendezvous of processes started by this one, by torchrun, or by the caller."""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from bow.cluster.heartbeat import EXIT_STATUS, Heartbeat
from bow.cluster.launch import WorkerJob, Workers, failed
from bow.cluster.processes import Bucket, Processes, Ranks, backend_for
from bow.cluster.world import ALONE, PATIENCE, World
from bow.devices import available_cores, num_threads
from bow.devices.cores import siblings_of
from bow.errors import ClusterError, DivergenceError, SettingError, reason

INTERFACE = "GLOO_SOCKET_IFNAME"  # selects Gloo's network interface

ELSEWHERE = "192.0.2.1"  # an address that no machine has (RFC 5737)

GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux's ioctl


def address_towards(host: str, port: int) -> str | None:
    """Return this machine's IPv4 address on the route to another; None if there is no route, or only a loopback."""
    address = _source(host, port)
    if address is not None and _is_loopback(address) and host != "localhost" and not _is_loopback(host):
        address = _source(ELSEWHERE, port)  # `host` is a name of this machine
    return None if address is None or _is_loopback(address) else address


def is_ours(host: str) -> bool:
    try:
        with socket.create_server((socket.gethostbyname(host), 0)):
            return True
    except OSError:
        return False


def _source(host: str, port: int) -> str | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            address: str = probe.getsockname()[0]
    except OSError:
        return None
    return address


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def interface_of(address: str) -> str | None:
    """Return the network interface whose first IPv4 address this is; None if not found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has none
                found = fcntl.ioctl(probe.fileno(), GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


@contextlib.contextmanager
def reachable_by(host: str, port: int) -> Iterator[None]:
    """Make Gloo use the interface on the route to another machine, unless the user has set one."""
    address = None if INTERFACE in os.environ else address_towards(host, port)
    name = None if address is None else interface_of(address)
    if name is None:
        yield
        return
    os.environ[INTERFACE] = name
    try:
        yield
    finally:
        os.environ.pop(INTERFACE, None)


POLL_S = 0.05


def meet(store: Store, rank: int, size: int, within_s: float, failure: Callable[[], str | None] = lambda: None) -> str:
    """Wait until all processes have arrived, and agree on a key prefix that is new in this store."""
    # torchrun keeps its store when it restarts processes, and so do several trainings of one script: the store may hold
    # keys of earlier ones. Rank 0 publishes the tokens it reads; the others answer only to a list with their own token.
    token, give_up = uuid.uuid4().hex, time.monotonic() + within_s
    store.set(_hello(rank), token)
    called, name = [""] * size, ""
    while True:
        if rank == 0:
            tokens = [token, *(_read(store, _hello(other)) for other in range(1, size))]
            if tokens != called and all(tokens):
                called, name = tokens, uuid.uuid4().hex
                store.set("bow/roll", json.dumps({"name": name, "tokens": tokens}))
            if name and all(_read(store, f"bow/{name}/here/{other}") for other in range(1, size)):
                store.set(f"bow/{name}/go", "1")
                break
        else:
            roll = json.loads(_read(store, "bow/roll") or "{}")
            if roll and len(roll["tokens"]) == size and roll["tokens"][rank] == token:
                name = roll["name"]
                store.set(f"bow/{name}/here/{rank}", "1")
                if _read(store, f"bow/{name}/go"):
                    break
        if (why := failure()) is not None:
            raise ClusterError(why)
        if time.monotonic() > give_up:
            absent = [other for other in range(size) if rank == 0 and not _read(store, _hello(other))]
            who = f"rank {absent[0]}" if absent else "one of the other processes" if rank == 0 else "rank 0"
            raise ClusterError(f"{who} did not join within {within_s:.0f} s; check its output")
        time.sleep(POLL_S)
    return f"bow/{name}"


def _hello(rank: int) -> str:
    return f"bow/hello/{rank}"


def _read(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun

JOINING_S = 300.0  # time limit (s) for all processes to arrive
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


def is_member() -> bool:
    return (dist.is_available() and dist.is_initialized()) or all(name in os.environ for name in VARIABLES)


def is_leader() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not is_member() or _number("RANK", 0) == 0


def job_name() -> str | None:
    """Return torchrun's name of the job, which survives restarts, if there is one."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return name if is_member() and name not in (None, "none") else None


def was_restarted() -> bool:
    return is_member() and _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


@contextlib.contextmanager
def join(
    device: torch.device, count: int | None = None, bucket_mb: Bucket = None, *, remedy: str = ""
) -> Iterator[World]:
    """Join the processes that torchrun started, or the default process group; without either, this process is alone."""
    if not is_member():
        yield ALONE
        return
    size = dist.get_world_size() if dist.is_initialized() else _number("WORLD_SIZE", 1)
    if count not in (None, size):
        raise SettingError(
            f"devices={count} contradicts the {size} processes that were started, each of which has one device; leave "
            f"devices out, or start {count} processes"
        )
    with _joined(device, bucket_mb, remedy) as world, share_of_machine(world, device):
        yield world


@contextlib.contextmanager
def start(
    size: int, device: torch.device, job: WorkerJob, bucket_mb: Bucket = None, *, remedy: str = ""
) -> Iterator[World]:
    workers = Workers(size, job, remedy)
    in_peace = False
    world: Processes | None = None
    try:
        # A worker that ended is detected at once; on a busy machine the others may take long to arrive.
        prefix = meet(workers.store, 0, size, PATIENCE.total_seconds(), workers.failure)
        workers.job.delivered()
        heartbeat = Heartbeat(lambda: PrefixStore(prefix, workers.connect()), 0, size, remedy, workers.kill)
        with heartbeat, _excepthook_kept():
            store = PrefixStore(prefix, workers.store)
            world = Processes(device, Ranks(0, size, 0, size), store, bucket_mb=bucket_mb, remedy=remedy)
            workers.on_failure = world.abort
            with world, share_of_machine(world, device):
                try:
                    yield world
                finally:
                    workers.on_failure = None
        in_peace = True
    except DivergenceError as error:  # may be a consequence of an aborted sum
        if world is None or not world.was_aborted:
            raise
        raise failed(workers, error) from error
    except ClusterError as error:
        raise failed(workers, error) from error
    finally:
        workers.close(in_peace)


@contextlib.contextmanager
def _excepthook_kept() -> Iterator[None]:
    before = sys.excepthook
    try:
        yield
    finally:
        if sys.excepthook.__module__.startswith("torch."):
            sys.excepthook = before


@contextlib.contextmanager
def share_of_machine(world: World, device: torch.device) -> Iterator[None]:
    """Pin this process to its share of the cores, if several processes train on the machine's CPU."""
    if device.type != "cpu" or world.local_size == 1 or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    cores = sorted(available_cores(), key=lambda core: (siblings_of(core)[0], core))  # hyper-threads next to each other
    own = share_of(cores, world.local_rank, world.local_size)
    os.sched_setaffinity(0, own)
    try:
        with num_threads(len(own)):
            yield
    finally:
        os.sched_setaffinity(0, before)


def share_of(cores: list[int], index: int, count: int) -> list[int]:
    """Return neighbouring cores for process `index` of `count`; with too few cores, one shared core."""
    if len(cores) < count:
        return [cores[index % len(cores)]]
    return cores[index * len(cores) // count : (index + 1) * len(cores) // count]


@contextlib.contextmanager
def _joined(device: torch.device, bucket_mb: Bucket, remedy: str) -> Iterator[World]:
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        group = dist.new_group(backend=backend_for(device))  # the caller's group may support one device type only
        hosts: list[Any] = [None] * size
        dist.all_gather_object(hosts, socket.gethostname(), group=group)
        places = list(dict.fromkeys(hosts))
        same = [other for other, host in enumerate(hosts) if host == hosts[rank]]
        ranks = Ranks(rank, size, same.index(rank), len(same), places.index(hosts[rank]), len(places))
        with contextlib.closing(Processes(device, ranks, None, bucket_mb=bucket_mb, group=group, remedy=remedy)) as own:
            yield own
        return
    _end_with_parent()
    rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    try:
        common, *_ = next(rendezvous("env://", timeout=timedelta(seconds=JOINING_S)))
        prefix = meet(common, rank, size, JOINING_S)
    except ClusterError:
        raise
    except (RuntimeError, ValueError) as error:
        host, port = _master()
        raise ClusterError(
            f"the other processes cannot be reached at {host}:{port} ({reason(error)}); check that rank 0 is running "
            "and that no firewall blocks the port"
        ) from error
    nodes = _number("GROUP_WORLD_SIZE", 1)
    ranks = Ranks(
        rank, size, _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", size), _number("GROUP_RANK", 0), nodes
    )
    interface = reachable_by(*_master()) if nodes > 1 else contextlib.nullcontext()
    with (
        interface,
        Heartbeat(lambda: PrefixStore(prefix, _connect()), rank, size, remedy),
        Processes(device, ranks, PrefixStore(prefix, common), bucket_mb=bucket_mb, remedy=remedy) as world,
    ):
        yield world


def _end_with_parent() -> None:
    """End when torchrun's agent is killed, which then cannot end its processes; Linux only."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed in the meantime
            os._exit(EXIT_STATUS)


def _connect() -> Store:
    host, port = _master()
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=10))


def _master() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def _number(variable: str, otherwise: int) -> int:
    return int(os.environ.get(variable, otherwise))
