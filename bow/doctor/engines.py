"""Which engines run on this machine, and why others do not or not fully."""

from dataclasses import dataclass

from bow.doctor.machine import Machine


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
    places = "the CPU and CUDA" if machine.gpus else "the CPU"
    return [
        EngineCheck("eager", True, f"on {places}"),
        _fused(machine, places),
        _graph(machine),
        EngineCheck("streams", True, "on the CPU, one thread of Python per learner"),
    ]


def _fused(machine: Machine, places: str) -> EngineCheck:
    if machine.compiler:
        return EngineCheck("fused", True, f"on {places}, compiled")
    return EngineCheck(
        "fused", True, f"on {places}, not compiled: torch.compile needs a C++ compiler; install g++, or set CXX"
    )


def _graph(machine: Machine) -> EngineCheck:
    if machine.compiler:
        return EngineCheck("graph", True, "on the CPU, one executor per learner")
    return EngineCheck("graph", False, "runs eager instead: its runtime needs a C++ compiler; install g++, or set CXX")
