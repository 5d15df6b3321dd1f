"""Contestants in processes of their own: those that are compiled, all at the same time, and those of another allocator.

A peer makes its contestant, and then waits at an address for whoever wants it to take a turn. While it waits, nothing
of it runs on the device.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Host, Remote
from bow.devices import available_cores
from bow.devices.memory import host_memory

if TYPE_CHECKING:
    from benchmarks.gpu import Config
    from benchmarks.gpu.parts import Allotment

POLL_S = 0.2
REPLY_S = 60.0  # a peer that does not answer for so long is left out

# What a process with PyTorch, CUDA and a compiler takes of the host's memory, and how much of that all may take
MEMORY_BYTES, MEMORY_SHARE = 3 * 2**30, 0.6

ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class Spec:
    """What a peer is made of."""

    name: str  # of the contestant, unique
    part: str  # the part in which it takes turns
    kind: str  # a method of `Subject`: `"plain"`, `"graphed"` or `"bow"`
    model: str  # a workload's name
    batch_size: int  # samples per learner
    settings: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the training
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of its process


class Peer:
    """A contestant in another process, seen from the one that measures."""

    def __init__(self, address: str, time_left: "Allotment") -> None:
        self._remote = Remote(Path(address), time_left.left)
        self.engine, self.first_call_s = self._remote.call(_about, limit_s=REPLY_S)

    def turn(self, seconds: float) -> float:
        """Samples per second in a turn."""
        self.begin_turn(seconds)
        return self.end_turn(seconds)

    def begin_turn(self, seconds: float) -> None:
        """Begin a turn, which `end_turn` waits for."""
        self._remote.send(_turn, seconds)

    def end_turn(self, seconds: float) -> float:
        """Samples per second in the turn that was begun."""
        return float(self._remote.receive(REPLY_S + seconds))

    def loss(self) -> float:
        """The mean loss of the last round, of bow."""
        return float(self._remote.call(_loss, limit_s=REPLY_S))

    def close(self) -> None:
        """Let others talk to it."""
        self._remote.close()


class Peers:
    """The processes of peers, which compile beside whatever is not timed: the most important ones first."""

    def __init__(self, specs: Sequence[Spec], logs: Path, config: "Config") -> None:
        self._specs, self._logs, self._config = list(specs), logs, config
        self._hosts: dict[tuple[str, str], Host] = {}
        self._started = time.monotonic()

    def start(self) -> None:
        """Let as many as there are cores and memory for go on, or begin."""
        room = int(MEMORY_SHARE * host_memory()[1] / MEMORY_BYTES)
        busy = [host for host in self._hosts.values() if not host.is_settled]
        for host in busy:
            host.resume()
        most = min(room - len(self._hosts), max(1, len(available_cores()) // 2) - len(busy))
        for spec in [spec for spec in self._specs if (spec.part, spec.name) not in self._hosts][: max(0, most)]:
            variables = {"TORCHINDUCTOR_COMPILE_THREADS": "1", **ENVIRONMENT, **spec.environment}
            log = self._logs / f"peers_of_{spec.part}.txt"
            self._hosts[spec.part, spec.name] = Host(variables, log, (enter, (spec, self._config)))

    def addresses(self, part: str) -> dict[str, str]:
        """Of all that belong to a part, by name; those that were not started are nowhere."""
        hosts = {spec.name: self._hosts.get((part, spec.name)) for spec in self._specs if spec.part == part}
        return {name: "nowhere" if host is None else str(host.address) for name, host in hosts.items()}

    def settle(self, part: str, most_s: float) -> None:
        """Stop those that are not ready, for as long as something is timed.

        Before that, wait for those of the part, but no longer than so many seconds from when the first was started.
        """
        own = {(spec.part, spec.name) for spec in self._specs if spec.part == part}
        while time.monotonic() < self._started + most_s and not all(self._is_settled(key) for key in own):
            self.start()
            time.sleep(POLL_S)
        for host in self._hosts.values():
            if not host.is_settled:
                host.stop()

    def end(self, part: str) -> None:
        """End those of a part, and let others go on."""
        self._specs = [spec for spec in self._specs if spec.part != part]
        for key in [key for key in self._hosts if key[0] == part]:
            self._hosts.pop(key).close()
        self.start()

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()

    def _is_settled(self, key: tuple[str, str]) -> bool:
        return key in self._hosts and self._hosts[key].is_settled


# What follows runs in the process of a peer.

_entered: list[Any] = []


def enter(spec: Spec, config: "Config") -> None:
    """Make the contestant of a spec, warm."""
    import torch

    from benchmarks.gpu.machine import open_machine
    from benchmarks.gpu.racing import Contestant, Subject
    from benchmarks.gpu.workloads import workload

    torch.set_num_threads(1)  # of the host
    machine = open_machine(config.fake, config.tf32)
    chosen = workload(spec.model, config.fake)
    subject = Subject(machine, chosen, chosen.make_data(config.samples), spec.batch_size)
    _entered.append(Contestant(machine, lambda: getattr(subject, spec.kind)(**spec.settings)))


def _about() -> tuple[str | None, float]:
    return _entered[0].engine, _entered[0].first_call_s


def _turn(seconds: float) -> float:
    return float(_entered[0].turn(seconds))


def _loss() -> float:
    return float(_entered[0].loss())
