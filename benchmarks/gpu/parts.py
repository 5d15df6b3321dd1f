"""The parts of `python -m benchmarks gpu`, the most important ones first."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from benchmarks.gpu.budget import Allotment
    from benchmarks.gpu.machine import Machine
    from benchmarks.gpu.settings import Config

Findings: TypeAlias = dict[str, Any]  # Plain values, as they go into the JSON


@dataclass(frozen=True)
class Part:
    """Something that is measured in a process of its own."""

    name: str  # of its file
    module: str  # of `benchmarks.gpu`; its `measure(context, **arguments)` records findings
    weight: float  # how much of the time it may take, as against the other parts; seconds where there are eight minutes
    arguments: Mapping[str, Any] = field(default_factory=dict)  # for `measure`
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of its process
    is_timed: bool = True  # whether nothing else may run meanwhile

    def measure(self) -> Callable[..., None]:
        """Of its module."""
        function: Callable[..., None] = importlib.import_module(f"benchmarks.gpu.{self.module}").measure
        return function


def _race(kind: str, weight: float, model: str, batch_size: int) -> Part:
    return Part(f"{kind}_{model}_{batch_size}", kind, weight, {"model": model, "batch_size": batch_size})


def _scheduling(weight: float, network: str) -> Part:
    return Part(f"scheduling_{network}", "scheduling", weight, {"network": network})


EIGHT_QUEUES = "launches_8_queues"

PARTS = (
    Part("launches", "launches", 25),
    Part("floors", "floors", 30, is_timed=False),
    Part("overlap", "overlapping", 20, is_timed=False),
    Part("agreement", "agreement", 20, is_timed=False),
    _race("throughput", 60, "lenet", 16),
    _race("throughput", 70, "resnet32", 32),
    _race("averaging", 25, "lenet", 16),
    _race("averaging", 30, "resnet32", 32),
    Part("kernels", "bandwidth", 35),
    _race("throughput", 40, "lenet", 4),
    Part("allocators", "allocators", 20),
    Part("spreading", "spreading", 20),
    _race("throughput", 45, "resnet32", 16),
    _race("throughput", 45, "resnet32", 64),
    _scheduling(35, "googlenet"),
    _scheduling(45, "inception"),
    _scheduling(40, "lstm"),
    _scheduling(15, "lenet"),
    Part("pinning", "pinning", 15),
    Part("compiling", "compiling", 15),
    Part(EIGHT_QUEUES, "launches", 15, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
)

NAMES = tuple(part.name for part in PARTS)
QUICK_PARTS = ("launches", "floors", "agreement", "throughput_lenet_16")


@dataclass
class Context:
    """What a part is given."""

    machine: "Machine"  # what it runs on
    settings: "Config"  # of the benchmark
    time: "Allotment"  # what it may take
    peers: Mapping[str, str]  # addresses of contestants in other processes, by name
    out: Path  # its folder
    save: Callable[[Findings], None]  # keeps findings, which may be cut off from here on
    findings: Findings = field(default_factory=dict)  # of the part so far

    def record(self, **values: Any) -> None:
        """Add findings and keep all of them."""
        self.findings.update(values)
        self.save(self.findings)

    def note(self, text: str) -> None:
        """Add a note: what was left out, or did not go as it should."""
        self.record(notes=[*self.findings.get("notes", []), text])
