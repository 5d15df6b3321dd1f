"""Members on one device, beside a loop of graphed trainings, and beside processes that share the device."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from benchmarks.gpu.parts import PARTS, Context
from benchmarks.gpu.peers import Peer, Spec
from benchmarks.gpu.racing import GRAPHED, Race, Subject, ready_peers
from benchmarks.trainings import MOST_ROUNDS
from bow import Engine

if TYPE_CHECKING:
    from benchmarks.gpu import Config
    from bow.members.cohort import Cohort

MPS, MPS_START_S = "nvidia-cuda-mps-control", 10.0
BY_MPS = " by MPS"
PEERS_S = 20.0  # how long the part waits for the processes


def counts(fake: bool) -> tuple[int, tuple[int, ...]]:
    """How many members there are, and how many processes share them out."""
    return (2, (1, 2)) if fake else (16, (4, 8))


def members_name(number: int) -> str:
    return f"{number} members"


def processes_name(number: int, has_mps: bool) -> str:
    return f"{number} processes{BY_MPS if has_mps else ''}, each step as a CUDA graph"


class MembersTraining:
    """The rounds of `bow.sweep`, endless, with data in the memory of the host, as a user gives them."""

    epochs = 0

    def __init__(self, subject: Subject, number: int, most_rounds: int) -> None:
        # These need packages that a bare machine may not have.
        from benchmarks.members.contestants import begun, train_on

        self._train_on, self._most_rounds = train_on, most_rounds
        self._cohort: Cohort = begun(
            subject.workload, subject.data, subject.batch_size, range(number), Engine("graph"), subject.machine.device
        )

    @property
    def engine(self) -> str:
        return self._cohort.loop.description

    @property
    def model(self) -> nn.Module:
        """The first member's."""
        return self._cohort.group.learners[0].module

    def __call__(self) -> int:
        return self._train_on(self._cohort, self._most_rounds)

    def close(self) -> None:
        self._cohort.loop.close()


class Together:
    """Peers that take their turns at the same time."""

    engine = None

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = peers
        self.first_call_s = max(peer.first_call_s for peer in peers)

    def turn(self, seconds: float) -> float:
        """Samples per second of all of them."""
        for peer in self._peers:
            peer.begin_turn(seconds)
        return sum(peer.end_turn(seconds) for peer in self._peers)

    def loss(self) -> float:
        """Nobody asks for it."""
        raise NotImplementedError

    def close(self) -> None:
        """What they have in common with others is closed there."""


def measure(context: Context, model: str, batch_size: int) -> None:
    """Let members, one training after another, and processes race."""
    config, race = context.config, Race(context, model, batch_size)
    number, processes = counts(config.fake)
    race.graphed(GRAPHED)
    most = 2 if config.fake else MOST_ROUNDS
    race.other(members_name(number), number, lambda: MembersTraining(race.subject, number, most))
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(contextlib.closing(peer)) for _, peer in ready_peers(context, PEERS_S)]
        for each in processes if config.processes else ():
            if len(peers) < each:
                context.cut(f"{each} processes: left out, {len(peers)} are ready")
            else:
                has_mps = any(BY_MPS in name for name in context.peers)
                race.enter(processes_name(each, has_mps), each, Together(peers[:each]))
        race.run(config.repeats, config.stint_s)
        race.close()


def peers(config: "Config", variables: Mapping[str, str]) -> list[Spec]:
    """The processes, each with a training whose whole step is a CUDA graph."""
    most = max(counts(config.fake)[1])
    return [
        Spec(f"process {n}{BY_MPS if variables else ''}", part.name, "graphed", **part.arguments, environment=variables)
        for part in PARTS
        if part.function == "members"
        for n in range(most)
    ]


@contextlib.contextmanager
def sharing(config: "Config") -> Iterator[Mapping[str, str]]:
    """Variables of processes that share the GPU by MPS, whose daemon is started for them; none where it cannot be."""
    if config.fake or not config.processes or (program := shutil.which(MPS)) is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="bow-mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        daemon = subprocess.Popen(
            [program, "-f"], env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield variables if _serves(program, variables) else {}
        finally:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                _ask(program, variables, "quit -t 1")
            daemon.kill()
            daemon.wait()


def _serves(program: str, variables: Mapping[str, str]) -> bool:
    deadline = time.monotonic() + MPS_START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if _ask(program, variables, "get_default_active_thread_percentage") == 0:
                return True
        time.sleep(0.2)
    return False


def _ask(program: str, variables: Mapping[str, str], what: str) -> int:
    """The status of a command of the daemon."""
    return subprocess.run(
        [program],
        input=what.encode(),
        env={**os.environ, **variables},
        capture_output=True,
        timeout=MPS_START_S,
        check=False,
    ).returncode
