"""What a run came of: command line, commit, versions, machine."""

import datetime
import functools
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from bow.devices import available_cores, processor


def provenance() -> dict[str, str]:
    """For the record of a start."""
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_initialized() else ""  # type: ignore[no-untyped-call]
    bow, commit = sys.modules["bow"].__version__, _commit()
    return {
        "began": f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}",
        "command": _command(sys.orig_argv),
        **({"commit": commit} if commit else {}),
        "versions": f"bow {bow}, torch {torch.__version__}, Python {platform.python_version()}",
        "machine": f"{processor()}, {len(available_cores())} cores{gpu}",
    }


def _command(words: list[str]) -> str:
    """As one would write it: `bow train ...`, or `python train.py`."""
    first = 1 if len(words) > 1 and Path(words[1]).name == "bow" else 0
    return shlex.join([Path(words[first]).name, *words[first + 1 :]])


@functools.cache  # what was imported is that of the first time
def _commit() -> str | None:
    """The commit of the current directory, with "-dirty" where they differ from it; None where there is none."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=2).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
