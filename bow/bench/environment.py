"""On what a benchmark ran: the hardware and the versions that its numbers depend on."""

import platform
from dataclasses import dataclass

import torch

import bow
from bow.doctor.machine import inspect_machine


@dataclass(frozen=True)
class Environment:
    """What belongs beside every measured number.

    Attributes:
        processor: its model name.
        cores: cores that this process may use.
        memory_gib: memory that this process may use.
        gpus: names of the CUDA devices.
        system: operating system and architecture.
        python: its version.
        torch: its version.
        bow: its version.
    """

    processor: str
    cores: int
    memory_gib: float
    gpus: tuple[str, ...]
    system: str
    python: str
    torch: str
    bow: str

    def __str__(self) -> str:
        """One line for people."""
        hardware = f"{self.processor}, {self.cores} cores, {self.memory_gib:g} GiB"
        return f"{hardware}; Python {self.python}, torch {self.torch}, bow {self.bow}"


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
    )
