"""The machine: processor, memory, Python, torch, GPUs, compiler."""

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
