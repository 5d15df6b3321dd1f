"""TensorBoard: the one file that imports it, and only when a run uses it."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from bow.errors import MissingDependencyError
from bow.observe.records import Record, plain, scalars
from bow.values import given_path

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger:
    """Writes event files that `tensorboard --logdir DIR` shows. The step of every series is the round.

    Args:
        dir: where the event files go; None: `tensorboard` in the run directory.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    def __init__(self, dir: str | Path | None = None) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingDependencyError("logger tensorboard needs the package tensorboard; pip install tensorboard")
        self.dir = None if dir is None else given_path("dir", dir)
        self._writer: SummaryWriter | None = None

    def log(self, record: Record) -> None:
        """Take one record; settings and events are shown as text, everything else as series."""
        if self._writer is None:
            self._writer = self._open(record)
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["round"])
        if record["kind"] in ("start", "end"):
            self._writer.add_text(f"run/{record['kind']}", _table(record))
        if record["kind"] == "event":
            self._writer.add_text(f"events/{record['event']}", record["message"], record["round"])

    def close(self) -> None:
        """Write what is held back and close the files."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, record: Record) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.dir or Path(record.get("run_dir") or ".") / "tensorboard"))


def _table(record: Record) -> str:
    rows = [f"| {name} | {value} |" for name, value in plain(record).items() if name != "kind"]
    return "\n".join(["| field | value |", "| --- | --- |", *rows])
