"""On what a benchmark ran: the hardware and the versions that its numbers depend on."""

import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

import bow
from bow.doctor import inspect_machine


@dataclass(frozen=True)
class Environment:
    """What belongs beside every measured number."""

    processor: str  # its model name
    cores: int  # cores that this process may use
    memory_gib: float  # memory that this process may use
    gpus: tuple[str, ...]  # names of the CUDA devices
    system: str  # operating system and architecture
    python: str  # its version
    torch: str  # its version
    bow: str  # its version
    commit: str | None = None

    def __str__(self) -> str:
        """One line for people."""
        hardware = f"{self.processor}, {self.cores} cores, {self.memory_gib:g} GiB"
        commit = "" if self.commit is None else f" at {self.commit}"
        return f"{hardware}; Python {self.python}, torch {self.torch}, bow {self.bow}{commit}"


def inspect_environment() -> Environment:
    """Look at this machine and at what is installed."""
    machine = inspect_machine()
    return Environment(
        processor=machine.processor,
        cores=machine.cores,
        memory_gib=round(machine.memory_bytes / 2**30, 1),
        gpus=tuple(gpu.name for gpu in machine.gpus),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        bow=bow.__version__,
        commit=find_commit(Path(bow.__file__).parent),
    )


def find_commit(package: Path) -> str | None:
    """The commit that a package's folder belongs to."""
    # An environment may lie inside somebody else's checkout: only one that tracks the package is its own.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(package, "rev-parse", "--short", "HEAD")
    changes = _git(package, "status", "--porcelain", "--", ".")
    return f"{commit} (modified)" if commit and changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
