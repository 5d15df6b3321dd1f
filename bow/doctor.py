"""What this machine is, and what of bow runs on it."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from bow.devices import processor
from bow.devices.memory import host_memory

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Gpu:
    """A CUDA device.

    Attributes:
        name: as the driver calls it.
        capability: compute capability, such as `"9.0"`.
        free_bytes: memory that nobody uses.
        total_bytes: all of its memory.
    """

    name: str
    capability: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Machine:
    """What is known about this machine.

    Attributes:
        python: version and where it lies.
        system: operating system and architecture.
        processor: its model name.
        cores: cores that this process may use.
        memory_bytes: memory that this process may use in all.
        available_bytes: what of it is free.
        torch: version, and what it is built for.
        gpus: CUDA devices that torch can use.
        gpu_problem: why a GPU that seems to be there cannot be used.
        compiler: the C++ compiler that torch.compile would call; None without one.
    """

    python: str
    system: str
    processor: str
    cores: int
    memory_bytes: int
    available_bytes: int
    torch: str
    gpus: tuple[Gpu, ...]
    gpu_problem: str | None
    compiler: str | None


def inspect_machine() -> Machine:
    """Look at this machine. Takes a second where there is a GPU, for CUDA to start."""
    total, available = host_memory()
    gpus = _gpus()
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return Machine(
        python=f"{platform.python_version()}, {sys.executable}",
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        processor=processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=total,
        available_bytes=available,
        torch=f"{torch.__version__}, built for {build}",
        gpus=gpus,
        gpu_problem=None if gpus else _gpu_problem(),
        compiler=_compiler(),
    )


def _gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(_gpu(index) for index in range(torch.cuda.device_count()))


def _gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return Gpu(properties.name, f"{properties.major}.{properties.minor}", free, total)


def _gpu_problem() -> str | None:
    if not (NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi")):
        return None
    if torch.version.cuda is None:
        return "an NVIDIA driver is installed, but this torch is built for the CPU only; install torch for CUDA"
    return (
        f"an NVIDIA driver is installed, but torch cannot use it with CUDA {torch.version.cuda}; update the driver,"
        " or install a torch that is built for an older CUDA"
    )


def _compiler() -> str | None:
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        return None
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return (answer.stdout.splitlines() or [path])[0]


@dataclass(frozen=True)
class EngineCheck:
    """An engine on this machine.

    Attributes:
        name: as in `engine=NAME`.
        runs: whether it runs.
        note: on what, or what is lacking and the remedy.
    """

    name: str
    runs: bool
    note: str


def check_engines(machine: Machine) -> list[EngineCheck]:
    """Check every engine against what this machine has."""
    return [
        EngineCheck("eager", True, "on the CPU and GPUs" if machine.gpus else "on the CPU"),
        _fused(machine),
        _graph(machine),
        EngineCheck(
            "streams", True, _on_both(machine, "on the CPU, one thread of Python per learner", "one stream each")
        ),
        EngineCheck("whole_round", bool(machine.gpus), _whole_round(machine)),
    ]


def _fused(machine: Machine) -> EngineCheck:
    if machine.compiler:
        return EngineCheck("fused", True, _on_both(machine, "on the CPU, compiled", "one graph a round"))
    return EngineCheck(
        "fused", True, "on the CPU, not compiled: torch.compile needs a C++ compiler; install g++, or set CXX"
    )


def _graph(machine: Machine) -> EngineCheck:
    if machine.compiler:
        return EngineCheck("graph", True, _on_both(machine, "on the CPU, one executor per learner", "one graph each"))
    lacking = "its runtime needs a C++ compiler; install g++, or set CXX"
    if machine.gpus:
        return EngineCheck("graph", True, f"on GPUs; runs eager on the CPU: {lacking}")
    return EngineCheck("graph", False, f"runs eager instead: {lacking}")


def _whole_round(machine: Machine) -> str:
    return "on GPUs, all learners as one CUDA graph" if machine.gpus else "needs a GPU; engine graph runs here"


def _on_both(machine: Machine, on_cpu: str, on_gpu: str) -> str:
    return f"{on_cpu}; on GPUs, {on_gpu}" if machine.gpus else on_cpu


REQUIRED = {
    "torch": "training",
    "cloudpickle": "several devices",
    "numpy": "arrays",
    "safetensors": "saved models",
    "scikit-learn": "the digits data set",
    "hydra-core": "the command line",
    "pyyaml": "the command line",
    "rich": "progress",
    "matplotlib": "reports",
    "jinja2": "reports",
    "jaxtyping": "annotations",
    "wandb": "logger=wandb",
}
OPTIONAL = {"tensorboard": "logger=tensorboard", "cupy": "CUDA kernels"}
ALIASES = {"cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}
EXCLUSIVE = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
REMEDIES = {
    "tensorboard": "pip install 'bow-trainer[tensorboard]'",
    "cupy": "pip install 'bow-trainer[cu13]'",
}


@dataclass(frozen=True)
class Library:
    """A library that bow uses.

    Attributes:
        name: of its distribution.
        purpose: what bow needs it for.
        version: the one that is installed; None: missing.
        required: whether bow does without it.
    """

    name: str
    purpose: str
    version: str | None
    required: bool

    @property
    def remedy(self) -> str:
        """How to get it."""
        return REMEDIES.get(self.name, f"pip install {self.name}")


def find_libraries() -> list[Library]:
    """All libraries that bow uses, without importing one of them."""
    required = [Library(name, purpose, version(name), True) for name, purpose in REQUIRED.items()]
    return required + [Library(name, purpose, version(name), False) for name, purpose in OPTIONAL.items()]


def problems() -> list[str]:
    """What is wrong with the installed libraries together."""
    there = [name for name in EXCLUSIVE if version(name)]
    if len(there) < len(EXCLUSIVE):
        return []
    return [f"{' and '.join(there)} are both installed and overwrite each other's files; uninstall one of them"]


def version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    for alias in ALIASES.get(name, (name,)):
        try:
            return importlib.metadata.version(alias)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
