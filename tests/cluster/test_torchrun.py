"""Under torchrun a training survives processes that end or hang, and machines that go."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests import forked
from tests.cluster.job import STEPS, train

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


def test_a_training_goes_on_with_the_machines_that_are_left(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=test"]
    conf = "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
    command = [*TORCHRUN, *options, conf, f"--rdzv-endpoint=127.0.0.1:{port}", "-m", "tests.cluster.job", str(folder)]
    # Their workers are no children of the server's, but their own, which end with them.
    environment = {name: value for name, value in os.environ.items() if name != forked.PLACE}
    agents = [subprocess.Popen([*command, "none", "0"], stderr=subprocess.DEVNULL, env=environment)]
    try:
        time.sleep(1.0)  # the first one hosts what they meet at
        agents.append(subprocess.Popen([*command, "none", "0"], stderr=subprocess.DEVNULL, env=environment))
        give_up = time.monotonic() + 600
        while not list(folder.glob("checkpoints/*.pt")):
            assert time.monotonic() < give_up
            time.sleep(0.1)
        os.kill(agents[1].pid, signal.SIGKILL)
        assert agents[0].wait(timeout=600) == 0
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert [start["learners"] for start in starts(folder)][-1] == 2
    assert records(folder)[-1]["kind"] == "end"
    assert records(folder)[-1]["round"] == STEPS
