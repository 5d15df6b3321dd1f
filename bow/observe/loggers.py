"""The logger protocol, a wrapper that protects training from failing loggers, and loggers to files."""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from bow.errors import MissingDependencyError, RunDirectoryError, disk_reason, warn_user
from bow.observe.records import Record, plain, scalars
from bow.values import given_path

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@runtime_checkable
class Logger(Protocol):
    """Anything that receives records, such as a file or a dashboard.

    Example:
        >>> class Printer:
        ...     def log(self, record):
        ...         print(record["kind"])
        ...     def close(self):
        ...         pass
        >>> Printer().log({"kind": "start", "time_s": 0.0})
        start
    """

    def log(self, record: Record) -> None:
        """Log one record; see `bow.observe.records` for its fields."""

    def close(self) -> None:
        """Flush and close. Called once, also after an error in training."""


class SafeLogger:
    """Passes records to a logger until it raises; then warns once and stops using it."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self.failed = False

    def log(self, record: Record) -> None:
        if self.failed:
            return
        try:
            self.logger.log(record)
        except Exception as error:
            self._drop(error)

    def close(self) -> None:
        """Close the logger, once, also if it failed earlier."""
        try:
            self.logger.close()
        except Exception as error:
            if not self.failed:
                self._drop(error)

    def _drop(self, error: Exception) -> None:
        self.failed = True
        name, why = type(self.logger).__name__, f"{type(error).__name__}: {error}"
        warn_user(f"{name} failed and was disabled ({why}); training continues")


class JsonLinesLogger:
    """Appends every record to a file as one line of JSON, flushed at once, so that `tail -f` and a crash lose nothing.

    Numbers that are not finite become null, since JSON has no NaN.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            before = self.path.read_bytes() if self.path.exists() else b""
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise RunDirectoryError(
                f"{path} cannot be written ({disk_reason(error)}); use another run directory"
            ) from error
        if before and not before.endswith(b"\n"):  # a line cut off by a crash
            self._file.write("\n")

    def log(self, record: Record) -> None:
        self._file.write(json.dumps(plain(record), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardLogger:
    """Writes event files that `tensorboard --logdir DIR` shows. The step of every series is the round.

    Args:
        dir: directory of the event files; None: `tensorboard` in the run directory.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    def __init__(self, dir: str | Path | None = None) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingDependencyError("logger tensorboard needs the package tensorboard; pip install tensorboard")
        self.dir = None if dir is None else given_path("dir", dir)
        self._writer: SummaryWriter | None = None

    def for_member(self, name: str, group: str) -> "TensorBoardLogger":
        """Return a logger for a member of a sweep, with a separate folder; without `dir`, in the member's directory."""
        return TensorBoardLogger(None if self.dir is None else Path(self.dir) / group / name)

    def log(self, record: Record) -> None:
        """Log one record; settings and events as text, everything else as series."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.dir or Path(record.get("run_dir") or ".") / "tensorboard"))
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["round"])
        if record["kind"] in ("start", "end"):
            rows = [f"| {name} | {value} |" for name, value in plain(record).items() if name != "kind"]
            self._writer.add_text(f"run/{record['kind']}", "\n".join(["| field | value |", "| --- | --- |", *rows]))
        if record["kind"] == "event":
            self._writer.add_text(f"events/{record['event']}", record["message"], record["round"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
