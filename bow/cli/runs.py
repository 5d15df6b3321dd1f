"""`bow runs`: list the runs of a folder as a table."""

import datetime
import fcntl
import re
from collections.abc import Sequence
from errno import EACCES, EAGAIN
from pathlib import Path

from bow.errors import BowError, RunDirectoryError, SettingError
from bow.files import DAMAGE
from bow.members.report import open_report
from bow.observe import RunDirectory
from bow.observe.run_directory import LOCK, readable
from bow.terminal import fit, say, terminal, terminal_table
from bow.values import given_path

USAGE = """\
usage: bow runs [DIR]

Lists the runs in a folder (default: runs), newest last: start time, model,
data, learners, engine, epochs, result and state. For details, use
bow report RUN, or bow compare A B.
"""
COLUMNS = ("run", "model, data", "learners, engine", "result", "state, epochs, time")
DATED = re.compile(r"^\d{4}-\d\d-\d\d_\d{6}_")
LONGEST_NAME = 30  # longest name that is never truncated


def run(words: Sequence[str]) -> int:
    if len(words) > 1:
        raise SettingError(f"bow runs takes one folder, got {len(words)}; write bow runs DIR")
    folder = given_path("the folder of runs", words[0] if words else "runs", RunDirectoryError)
    with readable(folder):
        if not folder.is_dir():
            raise RunDirectoryError(f"{folder} is not a directory; name a folder with runs in it")
        within = [folder, *sorted(folder.iterdir())]
    runs = sorted(filter(None, map(_look, within)), key=lambda each: each[0])
    if not runs:
        say(f"there are no runs in {folder}")
        return 0
    console, rows = terminal(), [row for _, row, _ in runs]
    if console.is_terminal:  # long names are wrapped after their dates
        rows = [[DATED.sub("\\g<0>\n", row[0]) if len(row[0]) > LONGEST_NAME else row[0], *row[1:]] for row in rows]
    table = terminal_table(f"Runs in {folder}", *COLUMNS, texts=range(len(COLUMNS)), rows=rows)
    table.columns[0].no_wrap = all(len(part) <= LONGEST_NAME for row in rows for part in row[0].split("\n"))
    fit(table, console.width)
    console.print(table)
    for _, _, damage in runs:
        if damage:
            say(f"damaged: {damage}")
    return 0


def _look(path: Path) -> tuple[str, list[str], str] | None:
    """Return a run's start time, its row and the damage found; None if there is no run."""
    directory, began = RunDirectory(path), ""
    try:
        with readable(path, damage=DAMAGE):
            if not path.is_dir() or not (directory.config_path.exists() or directory.holds_run):
                return None
            began = _began(directory)
            return began, _row(directory), ""
    except BowError as error:
        if isinstance(error.__cause__, FileNotFoundError):  # deleted meanwhile
            return None
        return began, [_named(directory, began), "", "", "", "damaged"], str(error)


def _row(directory: RunDirectory) -> list[str]:
    told = open_report(directory).summary
    state = "under way" if _is_in_use(directory) else told["state"]
    return [
        _named(directory, told["began"] or _began(directory)),
        ", ".join(filter(None, (told["model"], told["data"]))),
        ", ".join(filter(None, (told["learners"], told["engine"]))),
        told["result"].split(",")[0],
        f"{state}, {told['epochs']}, {told['time']}",
    ]


def _named(directory: RunDirectory, began: str) -> str:
    name = directory.path.resolve().name
    return name if name.startswith(re.sub(" (..):(..)", r"_\1\2", began)) else f"{name}\n{began[5:]}"


def _is_in_use(directory: RunDirectory) -> bool:
    try:
        with (directory.path / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (EAGAIN, EACCES)
    return False


def _began(directory: RunDirectory) -> str:
    path: Path = directory.config_path if directory.config_path.exists() else directory.path
    return f"{datetime.datetime.fromtimestamp(path.stat().st_mtime):%Y-%m-%d %H:%M}"
