"""Advice of `bow doctor`: how to train faster or safer on this machine, with measured gains where that is quick."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from bow.data import digits
from bow.devices.cores import BUSY, LOSS_TURNS, busy_cores
from bow.doctor import MachineInfo, version
from bow.engines import Engine
from bow.engines.memory import bytes_text
from bow.models import LeNet, ResNet
from bow.runtime import loading
from bow.timing import time_in_turns
from bow.training.replicas import Replicas

BATCH_SIZE = 16
TURNS, WINDOW_S = 5, 0.15
GAIN = 1.1  # speed-up from which another precision is recommended
LOSS = 2.0  # slow-down of torch's default threads against one thread from which to warn
LITTLE_BYTES = 2 * 2**30  # free disk space below which to warn
WRITTEN, SLOW_S = 16 * 2**20, 1.0


def advice(machine: MachineInfo) -> Iterator[str]:
    if machine.compiler is None:
        yield "install g++, or set CXX: engines graph and fused need it (its gain cannot be measured without it)"
    elif not loading.is_built():
        yield "run python -m bow.runtime: it builds the native runtime, for which the first training would wait"
    if machine.gpus and version("cupy") is None:
        yield "pip install 'bow-trainer[cu13]': CUDA kernels for averaging (the gain is not measured)"
    yield from _disk(Path.cwd())
    others = min(busy_cores(), machine.cores)
    if others >= BUSY:
        yield (
            f"other processes use {others:.1f} of {machine.cores} cores, which slows training down: end them, or wait "
            "until they have ended"
        )
    if machine.cores > 1 and others > machine.cores / 2:
        yield "threads and engines are not measured while other processes use most cores; run bow doctor later"
    elif machine.cores > 1:
        if loss := _default_loss():
            yield loss
        if machine.compiler is not None and loading.is_built():
            yield _engines(machine.cores)
            yield from _bfloat16(machine.cores)


def _disk(folder: Path) -> Iterator[str]:
    free = shutil.disk_usage(folder).free
    if free < LITTLE_BYTES:
        yield f"only {bytes_text(free)} are free in {folder}, which checkpoints may exceed; free space, or set run=DIR"
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            file.write(bytes(WRITTEN))
            os.fsync(file.fileno())
            took = time.perf_counter() - began
    except OSError:
        yield f"{folder} cannot be written: set run=DIR to a writable directory"
        return
    if took > SLOW_S:
        rate = bytes_text(round(WRITTEN / took))
        yield f"{folder} is slow ({rate}/s), which delays checkpoints; set run=DIR to a faster disk"


class _Rounds:
    """Rounds to be timed: learners of LeNet on digits, or of ResNet-8 on digits of 32x32."""

    def __init__(self, engine: Engine, learners: int = 1, *, is_resnet: bool = False) -> None:
        inputs, targets = (part[: learners * BATCH_SIZE] for part in digits().train)
        if is_resnet:
            inputs = torch.nn.functional.interpolate(inputs, size=32)
        self.batches = list(zip(torch.split(inputs, BATCH_SIZE), torch.split(targets, BATCH_SIZE), strict=True))
        model = ResNet(8, classes=10, channels=1) if is_resnet else LeNet(classes=10, channels=1, size=8)
        loss = torch.nn.functional.cross_entropy
        self.replicas = Replicas(model, loss, learners=learners, engine=engine, device="cpu")

    def run(self) -> None:
        self.replicas.round(self.batches)

    def rest(self) -> None:
        """Do nothing: the engines' threads wait without spinning."""


def _default_loss() -> str | None:
    """Return a warning if torch's default threads are slow here (measured in a new process), else None."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = "import torch, bow.devices as d; n = torch.get_num_threads(); print(n, *d.threads_loss(n))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    threads, low, median, high = map(float, done.stdout.split())
    if low < LOSS:
        return None
    return (
        f"outside of the bow command, torch's {threads:.0f} spinning threads take {median:.0f} times as long as one "
        f"({low:.0f} to {high:.0f} in {LOSS_TURNS} turns): import bow before torch, or set OMP_WAIT_POLICY=PASSIVE, as "
        "the bow command does"
    )


def _engines(cores: int) -> str:
    low, median, high = _gains(_Rounds(Engine("eager")), _Rounds(Engine("graph"), cores), cores)
    what = f"engine=graph learners={cores}: {median:.2f} times the samples per second of one learner"
    how = f"({low:.2f} to {high:.2f} in {TURNS} turns; LeNet, batches of {BATCH_SIZE})"
    return f"{what} in eager {how}" if low > 1 else f"{what} in eager, which is within noise or slower here {how}"


def _bfloat16(cores: int) -> Iterator[str]:
    """Recommend bfloat16 if it is measurably faster on this processor."""
    full, half = Engine("graph"), Engine("graph", precision="bfloat16")
    low, median, high = _gains(_Rounds(full, cores, is_resnet=True), _Rounds(half, cores, is_resnet=True))
    if low > 1 and median > GAIN:
        yield (
            f"engine.precision=bfloat16: {median:.2f} times the samples per second of float32 ({low:.2f} to {high:.2f} "
            f"in {TURNS} turns; engine=graph, ResNet-8, batches of {BATCH_SIZE}); it computes with less precision"
        )


def _gains(one: _Rounds, other: _Rounds, learners: int = 1) -> tuple[float, float, float]:
    """Lowest, median and highest ratio of samples per second: `other`, with `learners`, over `one`, with one."""
    try:
        found = time_in_turns({"one": one, "other": other}, turns=TURNS, window_s=WINDOW_S)
    finally:
        for each in (one, other):
            each.replicas.close()
    gains = [learners * own / others for own, others in zip(found["one"], found["other"], strict=True)]
    return min(gains), statistics.median(gains), max(gains)
