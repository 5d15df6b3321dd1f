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
