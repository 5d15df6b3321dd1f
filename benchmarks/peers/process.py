"""A training in a process of its own: what starts it, and what it runs."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.referee import Referee
from benchmarks.peers.task import Job, Task
from benchmarks.peers.training import DIVERGED, FAILED, Choice, Training
from bow.errors import DivergenceError

PATIENCE_S = 600.0  # For everything in a process besides training: starting, compiling, evaluating. Then it hangs

# For the other processes once that of rank 0 has ended well: its result is there, and they may hang in their end
GRACE_S = 5.0

POLL_S = 0.05


def train_apart(task: Task, environment: Mapping[str, str] | None = None) -> Training:
    """Train in a process of its own, or in several that train together, and wait for it.

    A process that fails or hangs is a training that failed.
    """
    count = CONTESTANTS[task.choice.contestant].processes
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(rank) for rank in range(count)]
        port = _free_port()
        common = environment_of(task.choice, {**os.environ, **(environment or {})})
        started = [_start(task, path, rank, common | _together(rank, count, port)) for rank, path in enumerate(paths)]
        try:
            failed = _wait(started, PATIENCE_S + 2 * task.limit_s)
        finally:
            for process in started:
                process.kill()
                process.wait()
        if failed is None:
            why = "did not end in time"
        else:
            why = _last_line(paths[failed[0]].with_suffix(".log")) if failed else ""
        if why:
            return Training(task.choice, task.seed, task.stage, FAILED, why=why, limit_s=task.limit_s)
        return Training.from_dict(json.loads(paths[0].read_text()))


def main(arguments: Sequence[str]) -> None:
    """What a process runs: the task is JSON on standard input, the training becomes a file."""
    task, path, rank = Task.from_dict(json.load(sys.stdin)), Path(arguments[0]), int(arguments[1])
    torch.set_num_threads(task.choice.threads)
    path.write_text(json.dumps(train(task, rank).as_dict()))
    if "WORLD_SIZE" in os.environ:
        os._exit(0)  # what closes gloo's process group may wait for ever for a process that has ended already


def train(task: Task, rank: int = 0) -> Training:
    """Train in this process; the clock starts when the data are read and the contestant's modules imported."""
    data = task.load()
    run = CONTESTANTS[task.choice.contestant].load()
    samples = len(data.train[1])
    every, most_samples = task.evaluate_every * samples, task.until * samples
    referee = Referee(data.validation, every, task.target, most_samples, task.limit_s)
    referee.start()
    try:
        ran_as = run(Job(task, data, referee, rank))
    except DivergenceError:
        ran_as, referee.ending = None, DIVERGED
    ending = referee.ending or FAILED
    why = "ended by itself" if referee.ending is None and rank == 0 else None
    return Training(task.choice, task.seed, task.stage, ending, tuple(referee.looks), ran_as, why, task.limit_s)


def environment_of(choice: Choice, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of a contestant's process: what only some contestants have, no other inherits."""
    own = {name for contestant in CONTESTANTS.values() for name in contestant.environment}
    kept = {name: value for name, value in inherited.items() if name not in own}
    return {**kept, **CONTESTANTS[choice.contestant].environment, "OMP_NUM_THREADS": str(choice.threads)}


def _together(rank: int, count: int, port: int) -> dict[str, str]:
    """What processes find each other by, where there are several."""
    if count == 1:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _start(task: Task, path: Path, rank: int, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    with path.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.process", str(path), str(rank)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env=environment,
        )
    assert process.stdin is not None
    with process.stdin:
        json.dump(asdict(task), process.stdin)
    return process


def _wait(processes: Sequence["subprocess.Popen[str]"], seconds: float) -> list[int] | None:
    """Wait until that of rank 0 has ended well, or one has failed, for which the others would wait."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        states = [process.poll() for process in processes]
        if states[0] == 0:
            _give_time(processes)
            return []
        if any(states):
            return [rank for rank, state in enumerate(states) if state]
        time.sleep(POLL_S)
    return None


def _give_time(processes: Sequence["subprocess.Popen[str]"]) -> None:
    """Let processes end by themselves, for a few seconds."""
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "ended without a word"


if __name__ == "__main__":
    main(sys.argv[1:])
