"""The result of a training, and its files: the model, written atomically, and the report."""

import contextlib
import functools
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn

from bow.errors import ModelError, disk_reason, reason, warn_user
from bow.files import spare_files
from bow.observe import RunDirectory
from bow.observe.records import metrics
from bow.training.checkpoint import delete_checkpoints
from bow.training.run_records import RunRecords

if TYPE_CHECKING:
    from bow.training.evaluation import BestModel


@dataclass(frozen=True, eq=False)
class Result:
    """Result of `bow.train`.

    Attributes:
        model: the central model, a plain module in evaluation mode, on the CPU.
        history: one record per epoch: losses, metrics, throughput, learners.
        throughput: training samples per second after the warm-up, without evaluation.
        learners: learners per device at the end; with a partition those of all devices together.
        engine: the engine that ran, after any fallback.
        time_to_target: seconds from the first round until `target` was reached; None if it was not.
        run_dir: the directory of config, records, report and model.
        model_path: the file of the model, for `safetensors.torch.load_model`: elsewhere if the run directory could not
            be written, None if no place could, or if another process has written it.
        report_path: the file of the report; None if it could not be written, or another process has written it.
        seconds: seconds from the first round to the end, including evaluation.
        calibration_s: seconds of the trials before the first round that chose engine and number of learners.
        best: the model at the best evaluation, by the metric of `stop=`, else the first metric of the validation data,
            else its loss; also in `best.safetensors`, if it is not the last. None if no evaluation had a value.
        stopped: why a rule of `stop=` ended the training, such as `"patience"`; None: none did.
        interrupted_by: the signal that interrupted the training, with `on_interrupt="return"`.
        num_restarts: number of times that a diverged learner restarted from the central model.
    """

    model: nn.Module = field(repr=False)
    history: list[dict[str, Any]] = field(repr=False)
    throughput: float
    learners: int
    engine: str
    time_to_target: float | None
    run_dir: Path
    seconds: float
    model_path: Path | None = None
    report_path: Path | None = None
    calibration_s: float = 0.0
    num_restarts: int = 0
    best: "BestModel | None" = field(default=None, repr=False)
    stopped: str | None = None
    interrupted_by: signal.Signals | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The last epoch's validation values, by name; values that `step` returned in training are `train_...`."""
        return metrics(self.history[-1]) if self.history else {}

    def save_pretrained(self, folder: str | Path, **settings: Any) -> None:
        """Save the model and its configuration for Hugging Face's `from_pretrained(folder)`.

        Args:
            folder: the target folder.
            **settings: as for `save_pretrained` of the model.

        Raises:
            ModelError: the model has no such method.
        """
        save = getattr(self.model, "save_pretrained", None)
        if save is None:
            kind = type(self.model).__name__
            raise ModelError(f"{kind} has no save_pretrained; load model_path with safetensors.torch.load_model")
        save(folder, **settings)


def save_results(
    model: nn.Module, best: nn.Module | None, directory: RunDirectory, records: RunRecords, deletes: bool
) -> tuple[Path | None, Path | None]:
    """Save the model, the best model if it differs, and the report; delete checkpoints if `deletes`."""
    if deletes:
        delete_checkpoints(directory.checkpoints, keep=1)  # a small disk may need the space for the model
    model_path = save_central(model, directory, functools.partial(records.warn_of, "not written"))
    if best is None:
        directory.best_path.unlink(missing_ok=True)
    else:
        where = directory.best_path
        saved = records.attempt(lambda: save_whole(best, where), "best model", "the final model was saved")
        deletes &= saved is not None
    if deletes and model_path == directory.model_path:  # else the newest checkpoint is the only copy
        delete_checkpoints(directory.checkpoints)
    if not directory.path.is_dir():  # it has gone, which was said of the model
        return model_path, None
    from bow.observe.report import write_report  # needed only at the end

    report = records.attempt(lambda: write_report(directory.path), "report", "run bow report to write it again")
    return model_path, report


def save_central(model: nn.Module, directory: RunDirectory, tell: Callable[[str], None] = warn_user) -> Path | None:
    wanted = directory.model_path
    try:
        return save_whole(model, wanted, directory.config_path)
    except (OSError, SafetensorError) as error:
        problem = f"the model cannot be written to {wanted} ({disk_reason(error)})"
    for path in spare_files(directory.path.name, wanted.suffix):
        with contextlib.suppress(OSError, SafetensorError):
            save_whole(model, path)
            tell(f"{problem}; it is in {path} instead")
            return path
    tell(f"{problem}, nor to the current directory or a temporary one; it is not saved")
    return None


def save_whole(model: nn.Module, path: Path, like: Path | None = None) -> Path:
    """Write the model atomically, with the file permissions of `like`."""
    part = path.with_name(f"{path.name}.tmp")
    try:
        save_model(model, str(part))
        with contextlib.suppress(OSError):  # safetensors makes it readable by the owner only
            if like is not None:
                shutil.copymode(like, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # some file systems report only here that they are full
        part.replace(path)
        return path
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError | SafetensorError) or not isinstance(error, Exception):
            raise
        what = f"safetensors holds dense tensors of common dtypes only, {type(error).__name__}: {reason(error)}"
        raise SafetensorError(what) from error
