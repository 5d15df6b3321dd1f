"""What a benchmark leaves behind: one JSON file with everything, and tables for people."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.environment import Environment
from bow.errors import SettingError

# Where results go by default: the folder that is committed, seen from the root of the repository
RESULTS = Path("benchmarks/results")


@dataclasses.dataclass(frozen=True)
class Table:
    """Text in rows and columns."""

    columns: Sequence[str]  # their headings; the columns named in `left` are text, the others numbers
    rows: Sequence[Sequence[str]]  # one text per column
    left: Sequence[str] = ()  # headings of the columns that are aligned to the left

    def markdown(self) -> str:
        """The table as GitHub shows it."""
        rulers = [":--" if column in self.left else "--:" for column in self.columns]
        lines = [self.columns, rulers, *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def show(self, title: str) -> None:
        """Print the table on the terminal."""
        table = RichTable(title=title, title_justify="left")
        for column in self.columns:
            table.add_column(column, justify="left" if column in self.left else "right")
        for row in self.rows:
            table.add_row(*row)
        console().print(table)


@dataclasses.dataclass(frozen=True)
class Result:
    """Everything that one run of a benchmark found out."""

    benchmark: str  # its name
    command: str  # the command that makes it again
    environment: Environment  # hardware and versions
    settings: Any  # a dataclass
    seconds: float  # how long the benchmark took
    findings: Mapping[str, Any]  # what was measured, as plain values

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values; `out` is left out of the settings, it changes no number."""
        settings = dataclasses.asdict(self.settings)
        settings.pop("out", None)
        return {
            "benchmark": self.benchmark,
            "command": self.command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 1),
            "environment": dataclasses.asdict(self.environment),
            "settings": settings,
            **self.findings,
        }


def prepare_output(folder: Path) -> None:
    """Make the folder for the results, and find out before hours of measuring that it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"out={folder} cannot be made ({error.strerror}); give another folder") from error
    if not os.access(folder, os.W_OK):
        raise SettingError(f"out={folder} cannot be written; give another folder")


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values as JSON; what is short, and every flat entry of a list, has a line of its own."""
    write_text(path, _json(values, 0) + "\n")


def console() -> Console:
    """The terminal; elsewhere 140 columns, so that a table in a log is whole."""
    wide = Console()
    return wide if wide.is_terminal else Console(width=140)


def _json(value: Any, depth: int, is_entry: bool = False) -> str:
    plain = json.dumps(value, allow_nan=False)
    if not value or not isinstance(value, (dict, list, tuple)):
        return plain
    is_flat = "{" not in plain[1:]
    if len(plain) <= 110 - 2 * depth or (is_entry and is_flat):
        return plain
    inside, outside = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict):
        body = [f"{inside}{json.dumps(key)}: {_json(entry, depth + 1)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(body) + f"\n{outside}}}"
    body = [inside + _json(entry, depth + 1, is_entry=True) for entry in value]
    return "[\n" + ",\n".join(body) + f"\n{outside}]"
