"""How good placements are: the time of a step with each, and what a search may spend."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from bow.errors import SettingError
from bow.planning.placement.groups import Devices, Groups
from bow.planning.problem.partition import Split
from bow.planning.search.problem import Problem
from bow.planning.simulator.native_simulator import Algorithm, NativeSimulator
from bow.planning.simulator.python_simulator import PythonSimulator, Refusal, SimulationResult, TooLarge
from bow.planning.simulator.simulation import Simulator


@dataclass(frozen=True)
class Budget:
    """What a method of placing may spend; it ends when either is used up.

    Attributes:
        seconds: of time; None: any.
        placements: so many may be looked at; None: any.

    Raises:
        SettingError: a value outside its range, or no limit at all.
    """

    seconds: float | None = None
    placements: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.placements is None:
            raise SettingError("a budget without seconds and placements never ends; give one of them")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise SettingError(f"seconds must be finite and above 0, got {self.seconds}")
        if self.placements is not None and self.placements < 1:
            raise SettingError(f"placements must be at least 1, got {self.placements}")

    def part(self, count: int) -> Budget:
        """One of several equal parts.

        Example:
            >>> Budget(placements=10).part(3)
            Budget(seconds=None, placements=3)
        """
        return Budget(
            None if self.seconds is None else self.seconds / count,
            None if self.placements is None else max(1, self.placements // count),
        )


NS_PER_S = 1e9


class Evaluator(Protocol):
    """All that training a policy, or another search, asks about placements."""

    def __call__(self, placements: Sequence[Devices]) -> list[float | None]:
        """Seconds of a step with each placement; None: it does not fit, or fails."""


@dataclass(frozen=True)
class Verdict:
    """What became of a placement.

    Attributes:
        seconds: of a step; None: it cannot be carried out.
        refusal: which device's memory is too small.
        reason: why it cannot be carried out; empty where it can.
    """

    seconds: float | None
    refusal: Refusal | None = None
    reason: str = ""


class SimulatedEvaluator:
    """Times from the planner's simulator, and no time for what does not fit the devices' memory.

    Placements are simulated one after another, each by what differs from the one before, and remembered.

    Args:
        problem: the graph, the devices and what everything costs.
        groups: of the problem's graph.
        processors: the devices that are processors and no accelerators; none: nothing is known of them.
        on_processor: kinds of operators that run on processors only; a group with one of them stays there.
        algorithm: how placements are simulated; `"python"` needs no compiler, and is slow.

    Raises:
        SettingError: the groups are of another graph; there is no such processor, or none where one is needed.

    Example:
        >>> from bow.planning.placement.grouping import every_operator
        >>> from bow.planning.simulator.costs import RooflineCosts
        >>> from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
        >>> from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
        >>> from bow.planning.rules.rule import Rules
        >>> kind = DeviceKind("gpu", memory_gib=1, tflops=1, gb_per_s=100, overhead_us=1)
        >>> pair = DeviceTopology("pair", (Device("a", kind), Device("b", kind)), (Link(("a", "b"), 5.0, 10.0),))
        >>> chain = tuple(PlanOperator(f"layer{n}", "sum", (n,), (n + 1,)) for n in range(2))
        >>> graph = OperatorGraph(chain, {n: TensorShape((8, 4)) for n in range(3)}, (0,), {}, 2)
        >>> problem = Problem(graph, Rules(), pair, RooflineCosts(graph, Rules(), pair))
        >>> evaluate = SimulatedEvaluator(problem, every_operator(graph), algorithm="python")
        >>> together, apart = evaluate([(0, 0), (0, 1)])
        >>> together < apart
        True
    """

    def __init__(
        self,
        problem: Problem,
        groups: Groups,
        *,
        processors: Collection[int] = (),
        on_processor: Collection[str] = (),
        algorithm: Algorithm | Literal["python"] = "incremental",
    ) -> None:
        if groups.graph is not problem.graph and groups.graph != problem.graph:
            raise SettingError("the groups are of another graph than the problem; group the problem's graph")
        wrong = next((each for each in processors if not 0 <= each < problem.topology.num_devices), None)
        if wrong is not None:
            raise SettingError(f"device {wrong} is no processor, there are {problem.topology.num_devices} devices")
        self.problem, self.groups = problem, groups
        self.processors = tuple(sorted(processors))
        self.on_processor = frozenset(on_processor)
        self.num_simulated = 0
        """Placements that were simulated: those that were asked for again are not among them."""
        self._algorithm: Algorithm | Literal["python"] = algorithm
        self._known: dict[Devices, Verdict] = {}
        self._devices: list[int] = []
        if any(groups.with_kinds(self.on_processor)) and not self.processors:
            raise SettingError(f"operators of {', '.join(sorted(self.on_processor))} need a processor; name one")

    def __call__(self, placements: Sequence[Devices]) -> list[float | None]:
        """Seconds of a step with each placement; None: it does not fit, or is not allowed."""
        return [self.verdict(placement).seconds for placement in placements]

    def verdict(self, placement: Sequence[int]) -> Verdict:
        """What becomes of a placement, and why."""
        devices = tuple(map(int, placement))
        if devices not in self._known:
            self._known[devices] = self._simulated(devices)
        return self._known[devices]

    def result(self, placement: Sequence[int]) -> SimulationResult:
        """All about a step with a placement, whether it fits or not: tasks, times, memory."""
        return self.problem.simulate(self.groups.splits(tuple(placement)))

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return self.problem.topology.num_devices

    @property
    def accelerators(self) -> tuple[int, ...]:
        """The devices that are no processors; all of them where there is nothing else."""
        return tuple(n for n in range(self.num_devices) if n not in self.processors) or self.processors

    @cached_property
    def allowed(self) -> tuple[tuple[int, ...], ...]:
        """By group: the devices that it may have."""
        every = tuple(range(self.num_devices))
        return tuple(self.processors if held else every for held in self.groups.with_kinds(self.on_processor))

    def legal(self, placement: Sequence[int]) -> Devices:
        """A placement with the groups that run on processors only on the first of these."""
        pairs = zip(placement, self.allowed, strict=True)
        return tuple(device if device in allowed else allowed[0] for device, allowed in pairs)

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: everything but the simulator, which it makes itself."""
        kept = {name: value for name, value in vars(self).items() if name != "_simulator"}
        return {**kept, "_known": dict(self._known), "_devices": []}

    @cached_property
    def _simulator(self) -> Simulator:
        model = self.problem.model()
        return PythonSimulator(model) if self._algorithm == "python" else NativeSimulator(model, self._algorithm)

    @cached_property
    def _on(self) -> tuple[tuple[Split, ...], ...]:
        """By device and operator: the operator whole on it."""
        return tuple(self.groups.splits((device,) * len(self.groups)) for device in range(self.num_devices))

    def _simulated(self, devices: Devices) -> Verdict:
        if len(devices) != len(self.groups):
            self.groups.splits(devices)  # says so
        if devices != self.legal(devices):
            wrong = next(n for n, device in enumerate(devices) if device not in self.allowed[n])
            name = self.groups.groups[wrong].name
            return Verdict(None, reason=f"group {name!r} must not run on device {devices[wrong]}")
        self.num_simulated += 1
        outcome = self._built(devices) if not self._devices else self._proposed(devices)
        if isinstance(outcome, TooLarge):
            topology = self.problem.topology
            name, available = topology.devices[outcome.device].name, topology.memory_bytes(outcome.device)
            refusal = Refusal(outcome.device, name, outcome.needed_bytes, available)
            return Verdict(None, refusal, str(refusal))
        return Verdict(self._simulator.makespan_ns / NS_PER_S)

    def _built(self, devices: Devices) -> object:
        self._devices = list(devices)
        return self._simulator.build([self._on[devices[group]][n] for n, group in enumerate(self.groups.of)])

    def _proposed(self, devices: Devices) -> object:
        """By what differs from the last placement that fitted."""
        changed = [group for group, pair in enumerate(zip(self._devices, devices, strict=True)) if pair[0] != pair[1]]
        changes = {
            operator: self._on[devices[group]][operator]
            for group in changed
            for operator in self.groups.groups[group].operators
        }
        outcome = self._simulator.propose(changes, None)
        if outcome is None:
            self._simulator.accept()
            self._devices = list(devices)
        return outcome
