"""The logger that every run has: one JSON object a line."""

import json
from pathlib import Path

from bow.errors import RunDirectoryError, disk_reason
from bow.observe.records import Record, plain


class JsonLinesLogger:
    """Appends every record to a file as one line of JSON, at once, so that `tail -f` and a crash see all.

    Numbers that are not finite become null: JSON has no NaN.

    Args:
        path: the file. What it holds is kept; a last line that a crash cut off is ended first.

    Raises:
        RunDirectoryError: the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be written ({disk_reason(error)}); use another run_dir") from error
        if _is_cut_off(self.path):
            self._file.write("\n")

    def log(self, record: Record) -> None:
        """Append one record."""
        self._file.write(json.dumps(plain(record), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_cut_off(path: Path) -> bool:
    text = path.read_bytes()
    return bool(text) and not text.endswith(b"\n")
