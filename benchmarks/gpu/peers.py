"""Contestants in processes of their own: those that are compiled, all at the same time, and those of another allocator.

A peer makes its contestant, and then waits at an address for whoever wants it to take a turn. While it waits, nothing
of it runs on the device.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import Allotment
from benchmarks.harness.bare import ROOT
from bow.devices.memory import host_memory

READY_POLL_S = 0.2
REPLY_S = 60.0  # A peer that does not answer for so long is left out

MEMORY_BYTES = 3 * 2**30
# What a process with PyTorch, CUDA and a compiler takes of the host's memory, and how much of that all may take
MEMORY_SHARE = 0.6


@dataclass(frozen=True)
class Spec:
    """What a peer is made of; see `contestants`."""

    name: str  # of the contestant, unique
    part: str  # the part in which it takes turns
    kind: str  # `"plain"`, `"graphed"` or `"bow"`
    model: str  # a workload's name
    batch_size: int  # samples per learner
    settings: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the training
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of its process


class PeerError(RuntimeError):
    """A peer is not there, has failed, or does not answer."""


class Peer:
    """A contestant in another process, seen from the one that measures."""

    def __init__(self, address: str, time_left: Allotment) -> None:
        self._failure = Path(f"{address}.failed")
        path = Path(address)
        while not path.exists():
            if self._failure.exists():
                raise PeerError(self._failure.read_text(encoding="utf-8"))
            if not time_left.allows(READY_POLL_S):
                raise PeerError("was not ready in time")
            time.sleep(READY_POLL_S)
        self._connection: Connection[Any, Any] = Client(address, family="AF_UNIX")
        about = self._ask("about", 0.0)
        self.engine: str | None = about["engine"]
        self.first_call_s = float(about["first_call_s"])

    def turn(self, seconds: float) -> float:
        """Samples per second in a turn."""
        return float(self._ask("turn", seconds))

    def loss(self) -> float:
        """The mean loss of the last round, of bow."""
        return float(self._ask("loss", 0.0))

    def close(self) -> None:
        """Let it end."""
        with contextlib.suppress(PeerError):
            self._ask("end", 0.0)
        self._connection.close()

    def _ask(self, what: str, seconds: float) -> Any:
        try:
            self._connection.send((what, seconds))
            if not self._connection.poll(REPLY_S + seconds):
                raise PeerError("does not answer")
            is_good, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise PeerError("has ended") from error
        if not is_good:
            raise PeerError(str(answer))
        return answer


class Peers:
    """The processes of peers, all started at once, so that they compile at the same time."""

    def __init__(self, specs: Sequence[Spec], folder: Path, logs: Path, common: Mapping[str, Any], most: int) -> None:
        self._specs = list(specs)
        self._folder = folder
        self._logs = logs
        self._common = common
        self._most = most
        self._processes: list[subprocess.Popen[bytes] | None] = []
        self._started: float | None = None
        self._is_settled = False

    def start(self) -> None:
        """Start them, once."""
        if self._started is not None:
            return
        self._started = time.monotonic()
        for index, spec in enumerate(self._specs[: self._most]):
            words = json.dumps(asdict(spec) | dict(self._common) | {"address": self._address(index)})
            with (self._logs / f"peers_of_{spec.part}.txt").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.gpu.serving", words],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=child_environment({"TORCHINDUCTOR_COMPILE_THREADS": "2", **spec.environment}),
                )
            self._processes.append(process)

    def addresses(self, part: str) -> dict[str, str]:
        """Of all that belong to a part, by name; of those that were not started as well."""
        return {spec.name: self._address(index) for index, spec in enumerate(self._specs) if spec.part == part}

    def settle(self, most_s: float) -> None:
        """Wait, once, until all are ready or have failed, or so many seconds have passed since they were started."""
        if self._started is None or self._is_settled:
            return
        self._is_settled = True
        indices = range(len(self._processes))
        while time.monotonic() < self._started + most_s and not all(map(self._has_come_to_something, indices)):
            time.sleep(READY_POLL_S)

    def end(self, part: str | None = None) -> None:
        """End those of a part, or all of them."""
        for index, process in enumerate(self._processes):
            if process is not None and part in (None, self._specs[index].part):
                process.kill()
                process.wait()
                self._processes[index] = None

    def _address(self, index: int) -> str:
        return str(self._folder / str(index))

    def _has_come_to_something(self, index: int) -> bool:
        process, address = self._processes[index], self._address(index)
        return process is None or process.poll() is not None or Path(address).exists()


def room_for_peers() -> int:
    """How many fit into a part of the host's memory."""
    return int(MEMORY_SHARE * host_memory()[1] / MEMORY_BYTES)


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that has to find this very bow."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **more}
