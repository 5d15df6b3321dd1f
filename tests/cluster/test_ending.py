"""A training on two devices that is asked to end, and one whose disk is full."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from bow.observe.records import read_records
from tests.cluster.job import STEPS, train
from tests.forked import FORKED

SCRIPT = """
import sys
from pathlib import Path
from tests.cluster import job
job.PAUSE_S = 0.02
fault = ("end", int(sys.argv[2])) if sys.argv[2:] else ()
job.train(Path(sys.argv[1]), *fault, learners=2, devices=2, checkpoint_every=1000, resume="auto")
"""


def begun(folder: Path, *fault: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([*FORKED, "-c", SCRIPT, str(folder), *fault], stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 600
    while not (folder / "metrics.jsonl").exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)
    time.sleep(0.3)
    return process


@pytest.mark.parametrize("whom", [pytest.param("rank 0", marks=pytest.mark.nightly), "rank 1"])
def test_one_that_is_asked_to_end_ends_all(tmp_path: Path, whom: str) -> None:
    folder = tmp_path / "run"
    process = begun(folder, *(["15"] if whom == "rank 1" else []))
    if whom == "rank 0":
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM, said
    (checkpoint,) = (folder / "checkpoints").iterdir()
    stopped = int(checkpoint.stem.removeprefix("round_"))
    assert 0 < stopped < STEPS
    resumed = train(folder, learners=2, devices=2, resume="auto")
    assert resumed.history[-1]["round"] == STEPS
    whole = train(tmp_path / "whole", learners=4)
    pairs = zip(resumed.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


def test_a_full_disk_ends_no_training(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoints").symlink_to("/dev/full")
    with pytest.warns(UserWarning, match="cannot be written"):
        result = train(folder, learners=2)
    assert result.history[-1]["round"] == STEPS
    records = read_records(folder / "metrics.jsonl")
    assert records[-1]["kind"] == "end"
