"""Outputs of an experiment: one JSON file with everything, a page, and tables in the documentation."""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness.config import RESULTS as RESULTS
from benchmarks.harness.config import Config
from benchmarks.harness.environment import inspect_environment
from benchmarks.harness.pages import render
from bow.errors import SettingError

TABLE = re.compile(r"<!-- (?P<key>\w+: [^\n]*?) -->\n.*?<!-- end -->", re.DOTALL)
UNSAVED = ("out", "docs")  # settings that do not influence the numbers


def result(benchmark: str, command: str, config: Config, seconds: float, findings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all results of a run of an experiment as plain values."""
    plain = {name: value for name, value in dataclasses.asdict(config).items() if name not in UNSAVED}
    return {
        "benchmark": benchmark,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "environment": inspect_environment(),
        "settings": plain,
        **findings,
    }


def with_other_parts(own: Mapping[str, Any], parts: Sequence[str], path: Path) -> dict[str, Any]:
    """These parts of a result, and those of the file that others have made, each with what made it."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    made = {key: own[key] for key in ("command", "date", "seconds", "environment", "settings")}
    kept = {part: before[part] for part in before.get("made", {}) if part in before}
    return {
        "benchmark": own["benchmark"],
        "made": {**before.get("made", {}), **dict.fromkeys(parts, made)},
        **kept,
        **{part: own[part] for part in parts},
    }


def publish(stem: str, values: Mapping[str, Any], out: Path, context: Mapping[str, Any] | None = None) -> str:
    """Write `STEM.md`, print its beginning, and return the page."""
    page = render(stem, {**values, **(context or {})})
    write_text(out / f"{stem}.md", page)
    say("\n## ".join(page.split("\n## ")[:2]))
    return page


def replace_tables(document: Path, page: str) -> None:
    """Insert the tables of a page, each between two marks with its key, into a document.

    Tables that the page lacks remain unchanged in the document: their part was not measured.
    """
    if document.is_file():
        tables = {match["key"]: match[0] for match in TABLE.finditer(page)}
        text = document.read_text(encoding="utf-8")
        write_text(document, TABLE.sub(lambda match: tables.get(match["key"], match[0]), text))


def say(text: str) -> None:
    """Print a line of progress, unbuffered."""
    print(text, flush=True)


def prepare_output(folder: Path) -> None:
    """Create the folder for the results, and check that it is writable before hours of measurements.

    Raises:
        SettingError: it is not writable; the message says why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"out={folder} cannot be made ({error.strerror}); give another folder") from error
    if not os.access(folder, os.W_OK):
        raise SettingError(f"out={folder} cannot be written; give another folder")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values as JSON; short values, and every flat entry of a list, are on one line."""
    write_text(path, _json(values, 0) + "\n")


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
