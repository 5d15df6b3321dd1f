"""Kills a training again and again, and looks at what becomes of it.

    python -m tests.cluster.killed 30          # two processes of torchrun; `tests.endings` ends a single one

Each time the training goes on from its last checkpoint. At the end the central model must be that of a training that
nobody has killed, bit for bit, and none may have gone back behind its last checkpoint.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bow

EVERY = 3
STEPS = 150
SEED = 7
PROCESSES = 2


class Tell:
    """Says on standard output which round this training begins with, and when each has ended."""

    def on_train_start(self, run: Any) -> None:
        if run.replicas.world.leads:
            print("begins", run.round, flush=True)

    def on_round_end(self, run: Any) -> None:
        time.sleep(0.01)


def train(folder: Path) -> None:
    """A training with dropout, batch norm, momentum and a schedule, whose checkpoints take a while to write."""
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(512, 64, generator=generator), torch.randint(10, (512,), generator=generator)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 1500), nn.BatchNorm1d(1500), nn.ReLU(), nn.Dropout(), nn.Linear(1500, 10))

    bow.train(
        model,
        data,
        nn.functional.cross_entropy,
        optimizer=functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        scheduler=bow.PerRound(functools.partial(torch.optim.lr_scheduler.StepLR, step_size=40, gamma=0.5)),
        batch_size=4,
        steps=STEPS,
        learners=2,
        engine="eager",
        callbacks=[Tell()],
        run=bow.Run(folder, checkpoint_every=EVERY, resume="auto", progress=False),
    )


def start(folder: Path) -> subprocess.Popen[str]:
    """Begin or go on, in a process group of its own."""
    runner = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    command = [sys.executable, *runner, "-m", "tests.cluster.killed", "train", str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def last_checkpoint(folder: Path) -> int:
    """The round of the newest one; 0 where there is none."""
    return max((int(path.stem.removeprefix("round_")) for path in folder.glob("checkpoints/*.pt")), default=0)


def began_with(process: subprocess.Popen[str]) -> int:
    """Wait until the training has begun; the round that it begins with."""
    assert process.stdout is not None
    line = next((line for line in process.stdout if line.startswith("begins")), None)
    assert line is not None, "it ended before it began"
    return int(line.split()[1])


def children(process: int) -> list[int]:
    """The processes that one has started."""
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:  # it has ended
        return []


def kill(process: subprocess.Popen[str], chosen: random.Random) -> None:
    """One process of the training, or all at once."""
    workers = children(process.pid)
    if workers and chosen.random() < 0.5:
        os.kill(chosen.choice(workers), signal.SIGKILL)
        process.wait(timeout=600)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    give_up = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < give_up, "a process has outlived its agent"
        time.sleep(0.05)


def check(kills: int) -> None:
    """Carry it out.

    Raises:
        AssertionError: something was lost.
    """
    chosen = random.Random(SEED)
    with tempfile.TemporaryDirectory() as name:
        whole, parts = Path(name) / "whole", Path(name) / "parts"
        begun = time.monotonic()
        process = start(whole)
        began_with(process)
        began = time.monotonic()
        assert process.wait() == 0
        training_s, starting_s = time.monotonic() - began, began - begun
        print(f"a training of {training_s:.1f} s, after {starting_s:.1f} s to start", flush=True)
        killed = 0
        while True:
            behind = last_checkpoint(parts)
            process = start(parts)
            first = began_with(process)
            assert first == behind, f"it went on from round {first}, and there was a checkpoint of round {behind}"
            if killed == kills:
                break
            try:
                process.wait(timeout=chosen.uniform(0, 2.5 * training_s / kills + 0.3))
                break
            except subprocess.TimeoutExpired:
                kill(process, chosen)
                killed += 1
                left = list(parts.glob("checkpoints/*.tmp"))
                writing = ", while a checkpoint was written" if left else ""
                print(f"killed {killed} at round {last_checkpoint(parts)} or later{writing}", flush=True)
        assert process.wait() == 0
        assert killed == kills, f"it ended after {killed} kills"
        models = [(folder / "model.safetensors").read_bytes() for folder in (whole, parts)]
        assert models[0] == models[1], "the central models differ"
    print(f"killed {killed} times, and the central model is the same")


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(Path(sys.argv[2]))
    else:
        check(int(sys.argv[1]))
