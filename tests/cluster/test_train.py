"""`bow.train` on several devices: processes that it starts itself, and those of torchrun."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bow
from bow.observe.records import read_records
from tests.grouped import grouped

FEATURES, CLASSES, SAMPLES = 6, 3, 103


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (SAMPLES,), generator=generator)


def train(folder: Path, **settings: Any) -> bow.Result:
    arguments = {
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "batch_size": 4,
        "epochs": 3,
        "engine": "eager",
        "validation": data(),
        "seed": 5,
        "progress": False,
        **settings,
    }
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return bow.train(model, data(), nn.functional.cross_entropy, **grouped(run_dir=folder, **arguments))


def assert_same(first: bow.Result, second: bow.Result) -> None:
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in pairs)
    for ours, theirs in zip(first.history, second.history, strict=True):
        for name in ("train_loss", "loss", "accuracy", "samples", "round", "epoch"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6)


def test_two_devices_train_what_one_would(tmp_path: Path) -> None:
    hook = sys.excepthook
    together = train(tmp_path / "two", devices=2, learners=2)
    assert sys.excepthook is hook
    alone = train(tmp_path / "one", devices=1, learners=4)
    assert_same(together, alone)
    assert together.learners == 2
    records = read_records(tmp_path / "two" / "metrics.jsonl")
    assert [record["kind"] for record in records].count("start") == 1
    assert (tmp_path / "two" / "model.safetensors").exists()


def test_a_training_goes_on_with_other_devices(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", devices=1, learners=4)
    train(tmp_path / "parts", devices=2, learners=2, epochs=1, checkpoint_every=6)
    resumed = train(tmp_path / "parts", devices=1, learners=4, epochs=3, resume="auto")
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in pairs)


@pytest.mark.nightly
def test_processes_of_torchrun_train_together(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", __name__]
    ran = subprocess.run([*command, str(tmp_path / "run")], check=False, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("rank done with 2 learners") == 2
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    alone = train(tmp_path / "one", devices=1, learners=4)
    epochs = [record for record in records if record["kind"] == "epoch"]
    assert [epoch["loss"] for epoch in epochs] == pytest.approx([epoch["loss"] for epoch in alone.history], rel=1e-9)


if __name__ == "__main__":
    print(f"rank done with {train(Path(sys.argv[1]), learners=2).learners} learners")
