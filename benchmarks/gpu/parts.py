"""The parts of `python -m benchmarks gpu`, the most important ones first: tests of the device, and what is measured."""

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


@dataclass(frozen=True)
class Part:
    """Something that is tested or measured in a process of its own."""

    name: str  # of its file
    function: str  # of a module of `benchmarks.gpu`; what it is called with `(context, **arguments)` records findings
    most_s: float  # how long it may take, from when its device is open; longer where there is more than `USUAL_S`
    least_s: float = 5.0  # with less than this it does not begin
    arguments: Mapping[str, Any] = field(default_factory=dict)  # for `measure`
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of its process
    is_timed: bool = True  # whether nothing else may run meanwhile

    def measure(self) -> Callable[..., None]:
        module, _, name = self.function.partition(".")
        function: Callable[..., None] = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name or "measure")
        return function


GRACE_S = 15.0  # a part that goes on for so long behind its time is ended
USUAL_S = 540.0  # what `most_s` of the parts is meant for
FUNCTIONS = {"throughput": "throughput", "averaging": "comparisons.averaging", "members": "members"}
LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}  # a machine without a network looks for one


def _race(kind: str, most_s: float, model: str, batch_size: int, least_s: float = 15.0) -> Part:
    arguments = {"model": model, "batch_size": batch_size}
    return Part(f"{kind}_{model}_{batch_size}", FUNCTIONS[kind], most_s, least_s, arguments)


def _tests(group: str, most_s: float, environment: Mapping[str, str] | None = None) -> Part:
    return Part(f"tests_{group}", "testing", most_s, 5, {"group": group}, environment or {}, is_timed=False)


def _scheduling(most_s: float, network: str) -> Part:
    return Part(f"scheduling_{network}", "scheduling", most_s, 10, {"network": network})


PARTS = (
    _tests("kernels", 60),
    _tests("agreement", 90),
    Part("overlap", "overlapping", 30, 10, is_timed=False),
    _race("throughput", 100, "lenet", 16, least_s=40),
    _race("throughput", 130, "resnet32", 32, least_s=60),
    _tests("randomness", 40),
    _tests("changes", 40),
    _tests("isolation", 40),
    _tests("memory", 90),
    _race("members", 50, "lenet", 16, least_s=25),
    _race("members", 70, "resnet32", 32, least_s=35),
    _tests("members", 60),
    _race("averaging", 30, "lenet", 16),
    _race("averaging", 40, "resnet32", 32),
    Part("kernels", "bandwidth", 40, 10),
    _tests("agreement_more", 120),
    _race("throughput", 60, "lenet", 4),
    Part("allocators", "comparisons.allocators", 30, 10),
    Part("spreading", "spreading", 30, 10),
    _race("throughput", 70, "resnet32", 16),
    _race("throughput", 70, "resnet32", 64),
    _scheduling(45, "googlenet"),
    _scheduling(55, "inception"),
    _scheduling(50, "lstm"),
    _scheduling(25, "lenet"),
    Part("pinning", "comparisons.pinning", 25, 10),
    Part("compiling", "comparisons.compiling", 25, 10),
    _tests("devices", 90, LOOPBACK),
)

NAMES = tuple(part.name for part in PARTS)
QUICK_PARTS = ("tests_kernels", "throughput_lenet_16")


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
        """Add a note: what did not go as it should."""
        self.record(notes=[*self.findings.get("notes", []), text])

    def cut(self, text: str) -> None:
        """Add a note of what was left out, because time ran out: the next run measures the part again."""
        self.findings["is_cut"] = True
        self.note(f"{text}, because time ran out")
