"""Terminate `bow train` repeatedly by signals, full disks and closed pipes, and check the outcome.

    python -m tests.endings 200        # number of terminations
    python -m tests.endings 200 8      # another seed

Each training is restarted with the same command line until it completes. It must then have the central model of an
undisturbed training, bit for bit, and status 0 if and only if the model is in its run directory; no attempt may lose
progress before its last checkpoint, hang, or print a traceback. Timing is random, so the same seed does not reproduce a
run. Full disks need root, for a separate file system; otherwise file sizes are limited.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import importlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import bow.cli
from tests.cluster.killed import last_checkpoint

STEPS = 300
MOST_S = 300.0
DISK_BYTES = 32 * 2**20
ATTEMPTS = 8
ENDINGS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "file size", "full disk", "nothing")
OUTPUTS = ("kept", "kept", "full", "closed pipe", "closed")
TRAININGS = (
    "engine=eager learners=2 run.checkpoint_every=20 model=mlp",
    "engine=graph learners=2 run.checkpoint_every=7 model=logistic_regression",
    "engine=eager learners=1 optimizer=adam model=mlp",
    "engine=streams learners=2 run.checkpoint_every=50 validation.every=0.25 model=lenet",
)


class Tell:
    """Writes the first round of the training, and the completed ones, to a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def on_train_start(self, run: Any) -> None:
        self._tell(f"begins {run.round}")

    def on_round_end(self, run: Any) -> None:
        self._tell(f"ended {run.round}")

    def _tell(self, text: str) -> None:
        with Path(self._path).open("a") as file:
            file.write(f"{text}\n")


@dataclass(frozen=True)
class Place:
    """The folder of a training: `disk`, which may become full, contains `run`."""

    disk: Path
    words: str

    @property
    def run(self) -> Path:
        return self.disk / "run"

    @property
    def model(self) -> Path:
        return self.run / "model.safetensors"

    @property
    def beside(self) -> Path:
        return self.disk.parent

    @property
    def told(self) -> Path:
        return self.beside / "told"

    @property
    def said(self) -> str:
        return (self.beside / "said").read_text(errors="replace")

    def command(self) -> list[str]:
        tell = f"callbacks=[{{_target_: tests.endings.Tell, path: {self.told}}}]"
        settings = [f"steps={STEPS}", "batch_size=4", f"run.path={self.run}", "run.resume=auto", tell]
        return ["train", *self.words.split(), *settings]


def start(place: Place, prepare: Callable[[], bool]) -> int:
    """Train in a process forked from this one, which has imported everything; returns its process id."""
    place.told.write_text("")
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        atexit._clear()  # handlers of the parent process
        os.setsid()
        os.chdir(place.beside)
        output = os.open(place.beside / "said", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if prepare():
            os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
            os.execv(sys.executable, [sys.executable, "-m", "bow", *place.command()])
        sys.argv = ["bow", *place.command()]
        try:
            status = bow.cli.main()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException as error:
        (place.beside / "escaped").write_text(f"{type(error).__name__}: {error}")
        status = 71
    finally:
        os._exit(status)


def end_of(child: int, within_s: float, until: Callable[[], bool] = lambda: False) -> int | None:
    """Return the exit status, negative for a signal; None: it has not ended."""
    give_up = time.monotonic() + within_s
    while time.monotonic() < give_up and not until():
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def preparation(output: str, most_bytes: int | None) -> Callable[[], bool]:
    """Return a function that sets up the faulty environment of a training, and tells if Python must start in it."""

    def prepare() -> bool:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        if output == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        elif output == "closed pipe":
            reader, writer = os.pipe()
            os.close(reader)
            os.dup2(writer, 1)
        elif output == "closed":
            os.close(1)
        return output == "closed"

    return prepare


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk; yields False if it is a plain folder."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    is_own = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield is_own
    finally:
        if is_own:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def filled(folder: Path, but_bytes: int) -> Iterator[None]:
    """Fill a disk up to this many free bytes."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
        file.write(bytes(max(0, free - but_bytes)))
    try:
        yield
    finally:
        filler.unlink()


def attempt(place: Place, chosen: random.Random, training_s: float, has_disk: bool, ending: str, output: str) -> bool:
    """Start or resume a training, and terminate it; returns whether it completed.

    Raises:
        AssertionError: data were lost, or it ended in a wrong way.
    """
    behind = last_checkpoint(place.run)
    size = chosen.choice((0, 4096, 20_000, 200_000, 1_000_000))
    most_bytes = size + 4096 if ending == "file size" or (ending == "full disk" and not has_disk) else None
    full = filled(place.disk, size) if ending == "full disk" and has_disk else contextlib.nullcontext()
    with full:
        child = start(place, preparation(output, most_bytes))
        status = None
        try:
            if ending in signal.Signals.__members__:
                if chosen.random() < 0.3:  # possibly during start-up
                    status = end_of(child, chosen.uniform(0, training_s))
                else:
                    last = f"ended {chosen.randint(min(behind + 1, STEPS), STEPS)}\n"
                    status = end_of(child, MOST_S, lambda: last in place.told.read_text())
                    status = end_of(child, chosen.uniform(0, 0.2)) if status is None else status
                if status is None:
                    os.kill(child, signal.Signals[ending])
            status = end_of(child, MOST_S) if status is None else status
        finally:
            if status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    told = [line.split() for line in place.told.read_text().splitlines()]
    begun = next((int(number) for word, number in told if word == "begins"), None)
    done = max((int(number) for word, number in told if word == "ended"), default=behind)
    what = f"{ending}, standard output {output}, status {status}, rounds {begun} to {done}"
    escaped = place.beside / "escaped"
    assert not escaped.exists(), f"{what}: {escaped.read_text()}"
    assert status is not None, f"{what}: it hangs"
    assert "Traceback" not in place.said, f"{what}: {place.said}"
    assert begun in (None, behind), f"{what}: there was a checkpoint of round {behind}"
    assert last_checkpoint(place.run) >= (behind if done < STEPS else 0), f"{what}: a checkpoint was lost"
    if ending in signal.Signals.__members__:
        number = signal.Signals[ending]
        expected = {0, -number, 128 + number}
        if number != signal.SIGKILL and status > 0 and done < STEPS:
            assert last_checkpoint(place.run) == (done if begun is not None else behind), f"{what}: rounds were lost"
    elif ending == "nothing":
        expected = {0}
    else:
        expected = {0, 1} if begun is not None else {0, 1, 2}
    assert status in expected, f"{what}: {place.said}"
    assert status != 0 or (place.model.exists() and done == STEPS), f"{what}: status 0 without a model"
    return status == 0


def check(count: int, seed: int) -> None:
    """Terminate trainings `count` times.

    Raises:
        AssertionError: data were lost.
    """
    chosen = random.Random(seed)
    tally = collections.Counter[str]()
    wholes: dict[str, tuple[bytes, float]] = {}
    with tempfile.TemporaryDirectory() as name, disk(Path(name) / "disk") as has_disk:
        while tally.total() < count:
            place = Place(Path(name) / "disk", chosen.choice(TRAININGS))
            if place.words not in wholes:
                began = time.monotonic()
                assert attempt(place, chosen, MOST_S, has_disk, "nothing", "kept"), place.said
                wholes[place.words] = place.model.read_bytes(), time.monotonic() - began
                shutil.rmtree(place.run)
                print(f"{place.words}: {wholes[place.words][1]:.1f} s", flush=True)
            whole, training_s = wholes[place.words]
            for turn in range(ATTEMPTS):
                ending = chosen.choice(ENDINGS) if turn < ATTEMPTS - 1 else "nothing"
                output = chosen.choice(OUTPUTS)
                is_over = attempt(place, chosen, training_s, has_disk, ending, output)
                is_over = is_over or (place.model.exists() and place.model.read_bytes() == whole)  # killed at the end
                tally[f"{ending}, standard output {output}"] += ending != "nothing" or output != "kept"
                at = f"at round {last_checkpoint(place.run)}" if not is_over else "over"
                print(f"{tally.total()} {ending}, standard output {output}: {at}", flush=True)
                if is_over:
                    break
            assert place.model.read_bytes() == whole, f"{place.words}: the central models differ"
            shutil.rmtree(place.run)
    for kind, number in sorted(tally.items()):
        print(f"{number:4} {kind}")
    print(f"ended {tally.total()} times{'' if has_disk else ', no disk was full'}: no training has lost anything")


if __name__ == "__main__":
    for module in ("bow.cli.training", "bow.cli.composition", "bow.training", "sklearn.datasets", "jinja2"):
        importlib.import_module(module)
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the disk has to be unmounted
    check(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 7)
