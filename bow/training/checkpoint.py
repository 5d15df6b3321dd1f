"""Checkpoints of a training: written whole or not at all."""

import contextlib
import copy
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bow.errors import CheckpointError, SettingError, reason

KEEP = 2
"""Checkpoints that are kept; older ones are deleted."""

DIRECTORY = "checkpoints"

_NAME = re.compile(r"round_(\d+)\.pt")


def save_checkpoint(directory: Path, round_index: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint under a temporary name, rename it, and delete all but the newest.

    NumPy's numbers are written as Python's: `load_checkpoint` reads nothing but tensors and plain values.

    Raises:
        CheckpointError: it cannot be written.
    """
    path = directory / f"round_{round_index:08d}.pt"
    temporary = path.with_suffix(".tmp")
    try:
        directory.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(_without_numpy(state), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        for old in _checkpoints(directory)[:-KEEP]:
            old.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror or reason(error)}); free space or use another run_dir"
        ) from error
    return path


def find_checkpoint(resume: str | Path | None, run_dir: str | Path | None) -> Path | None:
    """The checkpoint that `resume` means; None to start from the beginning.

    Raises:
        SettingError: `resume="auto"` without `run_dir`.
        CheckpointError: there is none where one was asked for.
    """
    if resume is None:
        return None
    if resume == "auto":
        if run_dir is None:
            raise SettingError(
                'resume="auto" looks for checkpoints in run_dir, got run_dir=None; name the run directory'
            )
        found = _checkpoints(Path(run_dir) / DIRECTORY)
        return found[-1] if found else None
    path = Path(resume)
    if path.is_file():
        return path
    found = _checkpoints(path / DIRECTORY) or _checkpoints(path)
    if not found:
        raise CheckpointError(f"resume={str(resume)!r} has no checkpoint; give a run directory or a checkpoint of one")
    return found[-1]


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain values are loaded.

    Raises:
        CheckpointError: it is damaged or no checkpoint.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a readable checkpoint ({reason(error)}); resume from another one"
        ) from error
    if not isinstance(state, dict) or "replicas" not in state:
        raise CheckpointError(f"{path} is not a checkpoint of bow; resume from a file in a run's checkpoints directory")
    return state


def delete_checkpoints_after(directory: Path, round_index: int) -> None:
    """Delete the checkpoints of later rounds: a training that goes on from this round has left their path.

    Raises:
        CheckpointError: one cannot be deleted.
    """
    for path in _checkpoints(directory):
        try:
            if _round_of(path) > round_index:
                path.unlink()
        except OSError as error:
            raise CheckpointError(
                f"{path} is of a later round than the one resumed from and cannot be deleted "
                f"({error.strerror or reason(error)}); delete it or use another run_dir"
            ) from error


def run_of(checkpoint: Path) -> Path | None:
    """The run directory that a checkpoint lies in; None where it was copied elsewhere."""
    return checkpoint.parent.parent if checkpoint.parent.name == DIRECTORY else None


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
