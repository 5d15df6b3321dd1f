"""Hardware and software versions that the numbers of an experiment depend on."""

import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def inspect_environment() -> dict[str, Any]:
    """Return hardware, versions, and the commit of the checkout, with "modified" if files differ from it."""
    import torch

    import bow
    from bow.doctor import inspect_machine

    machine = inspect_machine()
    return {
        "processor": machine.processor,
        "cores": machine.cores,
        "memory_gib": round(machine.memory_bytes / 2**30, 1),
        "gpus": [gpu.name for gpu in machine.gpus],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "bow": bow.__version__,
        "commit": find_commit(Path(bow.__file__).parent, Path(__file__).parents[1]),
    }


def told(environment: Mapping[str, Any]) -> str:
    """Format an environment in a line."""
    commit = f" at {environment['commit']}" if environment.get("commit") else ""
    line = "{processor}, {cores} cores, {memory_gib:g} GiB; Python {python}, torch {torch}, bow {bow}"
    load = f"; load {environment['load_before']:g} before" if "load_before" in environment else ""
    return line.format(**environment) + commit + load


def find_commit(package: Path, *others: Path) -> str | None:
    """Return the short hash of the commit of a package's folder; None if it is not part of a checkout.

    With "modified" if Python, C++ or CUDA files of the folders differ from the commit; result files are ignored.
    """
    # An environment may be inside another project's checkout: only one that tracks the package is meant.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(package, "rev-parse", "--short", "HEAD")
    paths = [str(path) for path in (package, *others)]
    changes = _git(package, "status", "--porcelain", "--", *paths, ":(top,exclude,glob)**/results/**")
    return f"{commit} (modified)" if commit and changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
