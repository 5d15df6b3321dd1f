"""Checkpoints of a training: written whole or not at all, and recognised where they were damaged later."""

import contextlib
import copy
import hashlib
import math
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from bow.errors import BowError, CheckpointError, SettingError, disk_reason, reason

KEEP = 2
"""Checkpoints that are kept; older ones are deleted."""

DIRECTORY = "checkpoints"

TRAILER = b"bow sha256 "
"""Behind what torch has written, which it does not mind: this and the checksum of all in front of it."""

_TRAILER_BYTES = len(TRAILER) + 64
_BLOCK_BYTES = 2**20
_NAME = re.compile(r"round_(\d+)\.pt")
_PARTS: dict[str, type | tuple[type, ...]] = {
    "replicas": dict,
    "stream": dict,
    "learners": int,
    "started_with": list,
    "round": int,
    "samples": int,
    "epoch": int,
    "elapsed_s": (int, float),
    "history": list,
    "epoch_losses": torch.Tensor,
}
"""What every checkpoint holds."""

_UNREADABLE = "not a readable checkpoint"
_REMEDY = "resume from an older one, or another file of a run's checkpoints directory"


def save_checkpoint(directory: Path, round_index: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint under a temporary name, rename it, and delete all but the newest.

    NumPy's numbers are written as Python's: `load_checkpoint` reads nothing but tensors and plain values.
    """
    path = directory / f"round_{round_index:08d}.pt"
    temporary = path.with_suffix(".tmp")
    try:
        directory.mkdir(exist_ok=True)
        with temporary.open("w+b") as file:
            torch.save(_without_numpy(state), file)
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


def open_checkpoint(resume: str | Path | None, run_dir: str | Path | None) -> dict[str, Any] | None:
    """What the checkpoint holds that `resume` means; None to start from the beginning.

    Where a run directory is meant, and its last checkpoint is damaged, that is the one before it.

    Warns:
        UserWarning: a damaged one was passed over.
    """
    found = meant(resume, run_dir)
    for path in reversed(found):
        try:
            return load_checkpoint(path)
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


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain values are loaded."""
    try:
        is_whole = _is_whole(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({disk_reason(error)}); resume from another one") from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True) if is_whole else None
    except Exception as error:  # torch's words would advise to trust the file
        raise CheckpointError(f"{path} is {_UNREADABLE} (it is damaged, or of another program); {_REMEDY}") from error
    if not is_whole:
        raise CheckpointError(f"{path} is {_UNREADABLE} (its checksum is another); {_REMEDY}")
    if not isinstance(state, dict) or not all(isinstance(state.get(part), kind) for part, kind in _PARTS.items()):
        raise CheckpointError(f"{path} is not a checkpoint of bow; {_REMEDY}")
    return state


@contextlib.contextmanager
def refusing_damage() -> Iterator[None]:
    """Refuse a state whose parts are not of the kinds that are needed, whatever fails on them."""
    try:
        yield
    except (BowError, torch.OutOfMemoryError):
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"the state to go on from is damaged ({reason(error)}); {_REMEDY}") from error


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
    """The round of the newest checkpoint; None where there is none."""
    found = _checkpoints(directory)
    return _round_of(found[-1]) if found else None


def run_of(checkpoint: Path) -> Path | None:
    """The run directory that a checkpoint lies in; None where it was copied elsewhere."""
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
