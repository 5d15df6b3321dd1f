"""Report this machine, and which parts of bow run on it."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from bow.devices import available_cores, processor
from bow.devices.memory import host_memory
from bow.runtime.loading import is_built

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Gpu:
    """A CUDA device."""

    name: str  # as reported by the driver
    capability: str  # compute capability, such as `"9.0"`
    free_bytes: int  # free memory
    total_bytes: int


@dataclass(frozen=True)
class MachineInfo:
    """The properties of this machine."""

    python: str  # version and path
    system: str  # operating system and architecture
    processor: str
    cores: int  # cores that this process may use
    memory_bytes: int  # total memory that this process may use
    available_bytes: int  # free memory
    torch: str  # version and build
    gpus: tuple[Gpu, ...]  # CUDA devices that torch can use
    gpu_problem: str | None  # why a GPU that seems to be present cannot be used
    compiler: str | None  # the C++ compiler that torch.compile would call; None without one


def inspect_machine() -> MachineInfo:
    total, available = host_memory()
    gpus = tuple(map(_gpu, range(torch.cuda.device_count()))) if torch.cuda.is_available() else ()
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return MachineInfo(
        python=f"{platform.python_version()}, {sys.executable}",
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        processor=processor(),
        cores=len(available_cores()),
        memory_bytes=total,
        available_bytes=available,
        torch=f"{torch.__version__}, built for {build}",
        gpus=gpus,
        gpu_problem=None if gpus else _gpu_problem(),
        compiler=_compiler(),
    )


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
    if (path := shutil.which(os.environ.get("CXX") or "g++")) is None:
        return None
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return (answer.stdout.splitlines() or [path])[0]


@dataclass(frozen=True)
class EngineCheck:
    """The status of an engine on this machine."""

    name: str  # as in `engine=NAME`
    runs: bool
    note: str  # devices, or what is missing and the remedy


def check_engines(machine: MachineInfo) -> list[EngineCheck]:
    lacking = "" if machine.compiler else "a C++ compiler; install g++, or set CXX"
    fused = f"not compiled: torch.compile needs {lacking}" if lacking else "compiled"
    native = "on the CPU, one executor per learner"
    if lacking:
        native = f"runs eager {'on the CPU' if machine.gpus else 'instead'}: its runtime needs {lacking}"
    elif not is_built():
        native += "; its runtime is not built yet: python -m bow.runtime"
    notes = {
        "eager": "on the CPU",
        "fused": f"on the CPU, {fused}",
        "graph": native,
        "streams": "on the CPU, one thread of Python per learner",
    }
    if machine.gpus:
        notes["eager"] += " and GPUs"
        notes["fused"] += "" if lacking else "; on GPUs, one graph a round"
        notes["graph"] = f"on GPUs; {native}" if lacking else f"{native}; on GPUs, graphs of CUDA"
        notes["streams"] += "; on GPUs, one stream each"
    runs = bool(machine.gpus or not lacking)
    return [EngineCheck(name, runs or name != "graph", note) for name, note in notes.items()]


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
REMEDIES = {"tensorboard": "pip install 'bow-trainer[tensorboard]'", "cupy": "pip install 'bow-trainer[cu13]'"}


@dataclass(frozen=True)
class Library:
    """A library that bow uses."""

    name: str  # of its distribution
    purpose: str  # what bow uses it for
    version: str | None  # installed version; None: missing
    required: bool  # False: bow works without it

    @property
    def remedy(self) -> str:
        return REMEDIES.get(self.name, f"pip install {self.name}")


def find_libraries() -> list[Library]:
    return [Library(name, purpose, version(name), name in REQUIRED) for name, purpose in (REQUIRED | OPTIONAL).items()]


def version(name: str) -> str | None:
    for alias in ALIASES.get(name, (name,)):
        try:
            return importlib.metadata.version(alias)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
