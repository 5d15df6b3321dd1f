"""The parts of `python -m benchmarks gpu`, the most important ones first."""

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from benchmarks.gpu import Config
    from benchmarks.gpu.machine import Machine

Findings: TypeAlias = dict[str, Any]  # plain values, as they go into the JSON
Clock = Callable[[], float]


@dataclass
class Allotment:
    """Time that a part may take."""

    seconds: float  # how much, from now on
    clock: Clock = time.monotonic  # seconds that only go up
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.clock() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until it is over, not below 0."""
        return max(0.0, self.deadline - self.clock())

    def allows(self, seconds: float) -> bool:
        """Whether so much is left."""
        return self.left >= seconds

    def share(self, weight: float, of: float) -> "Allotment":
        """A part of what is left, where `of` is the weight of all that still have to come, this one included."""
        return Allotment(self.left * weight / of, self.clock)


@dataclass(frozen=True)
class Part:
    """Something that is measured in a process of its own."""

    name: str  # of its file
    function: str  # of a module of `benchmarks.gpu`; what it is called with `(context, **arguments)` records findings
    weight: float  # how much of the time it may take, as against the other parts; seconds where there are eight minutes
    arguments: Mapping[str, Any] = field(default_factory=dict)  # for `measure`
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of its process
    is_timed: bool = True  # whether nothing else may run meanwhile

    def measure(self) -> Callable[..., None]:
        """Of its module."""
        module, _, name = self.function.partition(".")
        function: Callable[..., None] = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name or "measure")
        return function


FUNCTIONS = {"throughput": "throughput", "averaging": "comparisons.averaging"}


def _race(kind: str, weight: float, model: str, batch_size: int) -> Part:
    return Part(f"{kind}_{model}_{batch_size}", FUNCTIONS[kind], weight, {"model": model, "batch_size": batch_size})


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
    Part("allocators", "comparisons.allocators", 20),
    Part("spreading", "spreading", 20),
    _race("throughput", 45, "resnet32", 16),
    _race("throughput", 45, "resnet32", 64),
    _scheduling(35, "googlenet"),
    _scheduling(45, "inception"),
    _scheduling(40, "lstm"),
    _scheduling(15, "lenet"),
    Part("pinning", "comparisons.pinning", 15),
    Part("compiling", "comparisons.compiling", 15),
    Part(EIGHT_QUEUES, "launches", 15, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
)

NAMES = tuple(part.name for part in PARTS)
QUICK_PARTS = ("launches", "floors", "agreement", "throughput_lenet_16")


@dataclass
class Context:
    """What a part is given."""

    machine: "Machine"  # what it runs on
    config: "Config"  # of the benchmark
    time: Allotment  # what it may take
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
