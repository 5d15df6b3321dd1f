"""Under torchrun a training survives processes that end or hang, and machines that go."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.job import STEPS, train
from tests.cluster.test_own_errors import wait_for
from tests.forked import FORKED

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def starts(folder: Path) -> list[dict[str, Any]]:
    return [record for record in records(folder) if record["kind"] == "start"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What a training makes that nothing happens to; on one device, with the learners of both."""
    folder = tmp_path_factory.mktemp("expected") / "run"
    train(folder, learners=4)
    return load_file(folder / "model.safetensors")


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_processes_are_started_again_and_go_on(tmp_path: Path, fault: str, expected: dict[str, torch.Tensor]) -> None:
    folder = tmp_path / "run"
    command = [*TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=2", "-m", "tests.cluster.job"]
    ran = subprocess.run([*command, str(folder), fault, "23"], check=False, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-3000:]
    if fault == "stop":
        assert "rank 1 sent no heartbeat for 4 s" in ran.stderr
    assert len(starts(folder)) == 2
    for name, tensor in load_file(folder / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


def listens_at(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_training_goes_on_with_the_machines_that_are_left(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=test"]
    conf = "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
    command = [*TORCHRUN, *options, conf, f"--rdzv-endpoint=127.0.0.1:{port}", "-m", "tests.cluster.job", str(folder)]
    workers = [tmp_path / f"worker_{number}" for number in range(2)]

    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "none", "0", str(workers[number])], stderr=subprocess.DEVNULL)

    agents = [start(0)]
    try:
        wait_for(lambda: listens_at(port))  # the first one hosts what they meet at
        agents.append(start(1))
        wait_for(lambda: workers[1].exists() and any(folder.glob("checkpoints/*.pt")))
        os.kill(agents[1].pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # in --nightly it is a child of its agent, with which it ends
            os.kill(int(workers[1].read_text()), signal.SIGKILL)
        assert agents[0].wait(timeout=600) == 0
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert [start["learners"] for start in starts(folder)][-1] == 2
    assert records(folder)[-1]["kind"] == "end"
    assert records(folder)[-1]["round"] == STEPS


ORPHAN = """
import os, signal, time
from bow.cluster import rendezvous
reads, writes = os.pipe()
if os.fork():
    os.read(reads, 1)
    os.kill(os.getpid(), signal.SIGKILL)
rendezvous._end_with_parent()
os.write(writes, b"x")
time.sleep(60)
print("alone", flush=True)
"""


def test_a_process_ends_with_the_agent_that_has_started_it() -> None:
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "test"}
    ran = subprocess.run(
        [*FORKED, "-c", ORPHAN], stdout=subprocess.PIPE, env=environment, timeout=600, check=False
    )  # until nobody writes any more
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, b"")
