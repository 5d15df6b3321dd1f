"""Checkpoints of a training: when, written whole or not at all, and recognised where they were damaged later."""

import contextlib
import copy
import hashlib
import math
import os
import re
import shlex
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from bow.errors import BowError, CheckpointError, DeviceMemoryError, SettingError, disk_reason
from bow.training.context import RunContext
from bow.training.replicas import Replicas
from bow.training.replicas_state import RESUME_REMEDY
from bow.training.run_records import RunRecords

KEEP = 2  # checkpoints that are kept; older ones are deleted
DIRECTORY = "checkpoints"

TRAILER = b"bow sha256 "
"""Behind what torch has written, which it does not mind: this and the checksum of all in front of it."""

_TRAILER_BYTES = len(TRAILER) + 64
_BLOCK_BYTES = 2**20
_NAME = re.compile(r"round_(\d+)\.pt")
_PARTS: dict[str, type | tuple[type, ...]] = {
    "replicas": dict,
    "stream": dict,
    "started_with": list,
    "history": list,
    "epoch_losses": torch.Tensor,
    "learners": int,
    "round": int,
    "samples": int,
    "epoch": int,
    "elapsed_s": (int, float),
}  # what every checkpoint holds

_UNREADABLE = "not a readable checkpoint"


def save_checkpoint(directory: Path, round_index: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint under a temporary name, rename it, and delete all but the newest."""
    path = directory / f"round_{round_index:08d}.pt"
    temporary = path.with_suffix(".tmp")
    try:
        directory.mkdir(exist_ok=True)
        with temporary.open("w+b") as file:
            torch.save(_without_numpy(state), file)  # tensors and plain values alone are read again
            file.seek(0)
            checksum = _checksum(file)
            file.write(TRAILER + checksum)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(directory)
        for old in _checkpoints(directory)[:-KEEP]:
            old.unlink()
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter where the disk is full
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path} cannot be written ({disk_reason(error)}); free space or use another run directory"
        ) from error
    return path


def open_checkpoint(
    resume: str | Path | None, run_dir: str | Path | None, parts: Mapping[str, type | tuple[type, ...]] = _PARTS
) -> dict[str, Any] | None:
    """What the checkpoint holds that `resume` means, or the one before a damaged one; None: start anew."""
    found = meant(resume, run_dir)
    for path in reversed(found):
        try:
            return load_checkpoint(path, parts)
        except CheckpointError as error:
            if path is found[0]:
                raise
            warnings.warn(f"{error}; the one before is taken", stacklevel=3)
    return None


def meant(resume: str | Path | None, run_dir: str | Path | None) -> list[Path]:
    """The checkpoints that `resume` could mean, the oldest first."""
    if resume is None:
        return []
    if resume == "auto":
        if run_dir is None:
            raise SettingError('resume="auto" looks for checkpoints in the run directory, got none; name it')
        return _checkpoints(Path(run_dir) / DIRECTORY)
    path = Path(resume)
    if path.is_file():
        return [path]
    found = _checkpoints(path / DIRECTORY) or _checkpoints(path)
    if not found:
        raise CheckpointError(f"resume={str(resume)!r} has no checkpoint; give a run directory or a checkpoint of one")
    return found


def load_checkpoint(path: Path, parts: Mapping[str, type | tuple[type, ...]] = _PARTS) -> dict[str, Any]:
    """Read a checkpoint that has these parts; only tensors and plain values are loaded."""
    try:
        is_whole = _is_whole(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({disk_reason(error)}); resume from another one") from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True) if is_whole else None
    except Exception as error:  # torch's words would advise to trust the file
        raise CheckpointError(
            f"{path} is {_UNREADABLE} (it is damaged, or of another program); {RESUME_REMEDY}"
        ) from error
    if not is_whole:
        raise CheckpointError(f"{path} is {_UNREADABLE} (its checksum is another); {RESUME_REMEDY}")
    if not isinstance(state, dict) or not all(isinstance(state.get(part), kind) for part, kind in parts.items()):
        raise CheckpointError(f"{path} is not a checkpoint of bow; {RESUME_REMEDY}")
    return state


def delete_checkpoints_after(directory: Path, round_index: int) -> None:
    """Delete the checkpoints of later rounds: a training that goes on from this round has left their path."""
    for path in _checkpoints(directory):
        try:
            if _round_of(path) > round_index:
                path.unlink()
        except OSError as error:
            raise CheckpointError(
                f"{path} is of a later round than the one resumed from and cannot be deleted "
                f"({disk_reason(error)}); delete it or use another run directory"
            ) from error


def delete_checkpoints(directory: Path, keep: int = 0) -> None:
    """Delete those of a training that has ended, but the newest ones, as far as that is possible."""
    with contextlib.suppress(OSError):
        for path in _checkpoints(directory)[: -keep or None]:
            path.unlink()
        directory.rmdir()


def newest_round(directory: Path) -> int | None:
    found = _checkpoints(directory)
    return _round_of(found[-1]) if found else None


def run_of(checkpoint: Path) -> Path | None:
    return checkpoint.parent.parent if checkpoint.parent.name == DIRECTORY else None


def _sync_folder(folder: Path) -> None:
    """Have the disk know of a new name, for a power cut; where a file system cannot, it does without."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_whole(path: Path) -> bool:
    """Whether a checkpoint is as its checksum says, if it has one: those of earlier versions have none."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - _TRAILER_BYTES))
        trailer = file.read()
        if not trailer.startswith(TRAILER):
            return True
        file.seek(0)
        return _checksum(file, length - _TRAILER_BYTES) == trailer.removeprefix(TRAILER)


def _checksum(file: BinaryIO, length: int | None = None) -> bytes:
    """SHA-256, in hexadecimal digits, of so many bytes from here on; None: of all."""
    digest = hashlib.sha256()
    left = math.inf if length is None else length
    while left > 0 and (block := file.read(int(min(left, _BLOCK_BYTES)))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest().encode()


def _checkpoints(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), key=_round_of)


def _round_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("round_"))


def _without_numpy(value: Any) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    if isinstance(value, dict):
        entries = {_without_numpy(key): _without_numpy(entry) for key, entry in value.items()}
        same = copy.copy(value)  # a Counter of a scheduler stays one
        same.clear()
        same.update(entries)
        return same
    return type(value)(map(_without_numpy, value)) if type(value) in (list, tuple) else value


SHARE = 0.01  # automatic checkpoints take at most this part of the time
LEAST_S = 60.0  # seconds between two of them, at least; a training that is shorter writes none
BYTES_PER_S = 200e6  # what the first checkpoint is expected to be written at; those behind it are timed


class CheckpointTimer:
    """Says when a checkpoint is due where nobody has said how often."""

    def __init__(self, num_bytes: float, now_s: float) -> None:
        self._due_s = now_s + max(LEAST_S, num_bytes / BYTES_PER_S / SHARE)

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def wrote(self, began_s: float, ended_s: float) -> None:
        self._due_s = ended_s + max(LEAST_S, (ended_s - began_s) / SHARE)


class RunCheckpoints:
    """Writes the checkpoints of a training."""

    def __init__(self, context: RunContext, records: RunRecords, state: Callable[[], dict[str, Any] | None]) -> None:
        self._context = context
        self._position = context.position
        self._records = records
        self._state = state  # of the whole training; all devices ask for it, and rank 0 gets it
        copies = context.replicas.group.num_all + 1  # and of each, what an optimizer such as Adam remembers
        self._timer = CheckpointTimer(3 * 4 * context.replicas.num_parameters * copies, time.perf_counter())
        self._dealt_from: dict[str, Any] = {}

    @property
    def is_due(self) -> bool:
        return self._context.config.run.checkpoint_every == "auto" and self._timer.is_due(time.perf_counter())

    def after_round(self, before: int) -> None:
        """Write one where the rounds since the one before have passed a multiple of what the user asks for."""
        every = self._context.config.run.checkpoint_every
        if isinstance(every, int) and self._position.round // every > before // every:
            self.pause_and_write()

    def pause_and_write(self) -> None:
        self._position.meter.pause()
        self.write()
        self._position.meter.resume()

    def write(self, stream: dict[str, Any] | None = None) -> None:
        began = time.perf_counter()
        if (state := self._state()) is not None:
            state["stream"] = stream or state["stream"]
            folder, index = self._context.directory.checkpoints, self._position.round
            self._records.attempt(lambda: save_checkpoint(folder, index, state), "checkpoint", "the training goes on")
        self._timer.wrote(began, time.perf_counter())

    def interrupted(self, number: int) -> None:
        """Keep what was trained of a training that is asked to end from outside."""
        self.write()
        self._records.event("interrupted", f"{signal.Signals(number).name}: the training ends; {self.way_on}")

    def deal_begins(self) -> None:
        self._dealt_from = self._context.stream.state_dict()

    def keep_what_was(self) -> None:
        """Keep what was trained before rounds that have failed and left nothing behind."""
        asked_for = self._context.config.run.checkpoint_every is not None
        has_run = self._position.meter.samples > 0 and self._position.round == self._context.replicas.rounds
        if asked_for and self._context.world.is_one and has_run:
            self.write(self._dealt_from)

    def rounds_failed(self, error: Exception) -> None:
        """Keep what was trained, if a round that failed by this error has left the learners as they were."""
        replicas = self._context.replicas
        if isinstance(error, BowError) or not isinstance(replicas, Replicas):
            leaves_nothing = isinstance(error, DeviceMemoryError)
        else:
            # A step that raises in a round that is issued, or dealt ahead, has moved them.
            is_fixed = replicas.loop.settings.dispatch == "fixed"
            in_turn = replicas.engine in ("eager", "graph") and replicas.streams is None and is_fixed
            is_plain = type(replicas.optimizer).__module__.startswith("torch.optim.")
            leaves_nothing = in_turn and is_plain
        if leaves_nothing:
            self.keep_what_was()

    @property
    def way_on(self) -> str:
        directory = self._context.directory
        kept, path = newest_round(directory.checkpoints), str(directory.path)
        if kept is None:
            return "there is no checkpoint to go on from"
        how = f"bow.train(..., run=bow.Run({path!r}, resume='auto'))"
        if self._context.config.source is not None:
            config = shlex.quote(str(directory.config_path))
            how = f"bow train --config {config} {shlex.quote(f'run={path}')} run.resume=auto"
        return f"there is a checkpoint of round {kept}; go on with {how}"
