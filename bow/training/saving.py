"""The central model on disk: whole or not at all, and in another place where the run directory cannot take it."""

import contextlib
import os
import shutil
import warnings
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn

from bow.errors import disk_reason
from bow.files import spare_files
from bow.observe import RunDirectory, write_report
from bow.training.checkpoint import delete_checkpoints
from bow.training.run_records import RunRecords


def save_results(
    model: nn.Module, directory: RunDirectory, records: RunRecords, deletes: bool
) -> tuple[Path | None, Path | None]:
    """Save a training's model and report, and delete its checkpoints if they are not to be kept."""
    if deletes:
        delete_checkpoints(directory.checkpoints, keep=1)  # a small disk may need the room for the model
    model_path = save_central(model, directory)
    if model_path != directory.model_path:
        records.event("not written", f"the model is not in the run directory, but in {model_path}")
    elif deletes:
        delete_checkpoints(directory.checkpoints)
    report = records.attempt(lambda: write_report(directory.path), "report", "bow report writes it anew")
    return model_path, report


def save_central(model: nn.Module, directory: RunDirectory) -> Path | None:
    """Save a model in its run directory, else in the current directory, else in a temporary one.

    Warns:
        UserWarning: it is not in its run directory; says where it is.
    """
    wanted = directory.model_path
    try:
        _save_whole(model, wanted, directory.config_path)
        return wanted
    except (OSError, SafetensorError) as error:
        problem = f"the model cannot be written to {wanted} ({disk_reason(error)})"
    for path in spare_files(directory.path.name, wanted.suffix):
        try:
            _save_whole(model, path)
        except (OSError, SafetensorError):
            continue
        warnings.warn(f"{problem}; it is in {path} instead", stacklevel=3)
        return path
    warnings.warn(f"{problem}, nor to the current directory or a temporary one; free space", stacklevel=3)
    return None


def _save_whole(model: nn.Module, path: Path, like: Path | None = None) -> None:
    """Write it under another name and rename it; those who may read `like` may read it, too."""
    part = path.with_name(f"{path.name}.tmp")
    try:
        save_model(model, str(part))
        with contextlib.suppress(OSError):  # safetensors lets nobody else read it
            if like is not None:
                shutil.copymode(like, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # some file systems only now say that they are full
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
