"""The command `bow`.

Every subcommand is a module that is imported when it runs, so that `--help` is fast. A user's mistake is reported as
one sentence on standard error with exit status 2.
"""

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bow.cli.checking import suggestion
from bow.errors import BowError, ClusterError, DeviceMemoryError, DivergenceError, SettingError, disk_reason
from bow.files import Expendable
from bow.terminal import folded, say

USAGE = """\
usage: bow COMMAND [ARGUMENTS]

  bow train [NAME=VALUE ...] [-m]   train a model; without arguments LeNet on handwritten digits
  bow predict RUN DATA              apply the model of a run to data
  bow report RUN_DIR                write the report of a run, finished or not
  bow runs [DIR]                    the runs of a folder as a table
  bow compare RUN RUN               compare runs side by side, in one page
  bow schedule ACTION [NAME=VALUE ...]   profile, simulate, run and compare schedules of operators
  bow plan [NAME=VALUE ...]         plan how to split a model's operators over devices
  bow doctor [NAME=VALUE ...]       what this machine can run, and whether these settings would fit

bow COMMAND --help prints its usage, bow COMMAND -q only warnings and errors.
bow --version prints the version.
"""
COMMANDS = {
    "train": "training",
    "predict": "prediction",
    "report": "report",
    "runs": "runs",
    "compare": "comparing",
    "schedule": "scheduling",
    "plan": "planning",
    "doctor": "diagnosis",
}
QUIET = ("-q", "--quiet")
HELP = {"-h", "--help"}
MISTAKE = 2
INTERRUPTED = 130
LOST = FAILED = 1
FAILURES = (DivergenceError, DeviceMemoryError, ClusterError)  # errors that are not a user's mistake


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        _open_closed_streams()
    others = [word for word in words if word not in QUIET]
    out, err = Expendable(sys.stdout), Expendable(sys.stderr)
    with contextlib.ExitStack() as stack:
        shown: Any = out if others == words else stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(shown))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(warnings.catch_warnings())
        warnings.showwarning = _show_warning
        status = _status(others)
        out.flush()
        if out.error is not None and not isinstance(out.error, BrokenPipeError):
            say(f"bow: standard output cannot be written ({disk_reason(out.error)})", sys.stderr)
            status = status or (0 if words[:1] == ["train"] else LOST)  # a training's results are in its run directory
        err.flush()
    for stream in (out, err):
        if stream.error is not None:  # else Python flushes it again at exit and complains
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def _status(words: list[str]) -> int:
    try:
        return _run(words)
    except BowError as error:
        say(f"bow: {_one_line(_with_notes(str(error), error))}", sys.stderr)
        return FAILED if isinstance(error, FAILURES) else MISTAKE
    except KeyboardInterrupt as error:
        say(f"bow: {_with_notes('interrupted', error)}", sys.stderr)
        return INTERRUPTED
    except SystemExit as error:
        if not hasattr(error, "__notes__") or not isinstance(error.code, int):
            raise
        say(f"bow: {_with_notes('terminated', error)}", sys.stderr)
        return error.code


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams, so that no other file gets their descriptors."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _run(words: list[str]) -> int:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in {*HELP, "help"}:
        print(folded(USAGE), end="")
        return 0
    if command in ("-V", "--version"):
        print(f"bow {importlib.import_module('bow').__version__}")
        return 0
    if command not in COMMANDS:
        raise SettingError(f"{command!r} is not a command; {suggestion(command, COMMANDS)}")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise SettingError("the current directory has been deleted; change to another one") from None
    module = importlib.import_module(f"bow.cli.{COMMANDS[command]}")
    if HELP & set(rest):
        print(folded(module.usage() if hasattr(module, "usage") else module.USAGE), end="")
        return 0
    status: int = module.run(rest)
    return status


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    if os.environ.get("RANK", "0") != "0":
        return  # rank 0 shows the same warnings
    say(f"bow: warning: {_one_line(message)}", sys.stderr)


def _with_notes(text: str, error: BaseException) -> str:
    return "; ".join((text, *getattr(error, "__notes__", ())))


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
