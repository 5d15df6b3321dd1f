"""How good placements are: the time of a step with each, and what a search may spend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bow.planning.placement.groups import Devices, Groups
from bow.planning.problem.partition import Split
from bow.planning.search.problem import Problem
from bow.planning.simulator.python_simulator import Refusal, SimulationResult
from bow.planning.simulator.simulation import IncrementalEvaluator


@dataclass(frozen=True)
class SearchBudget:
    """What a method of placing may spend; it ends when seconds or placements are used up."""

    seconds: float | None = None  # None: any
    placements: int | None = None  # how many may be looked at; None: any
    workers: int = 0  # processes that draw and evaluate placements for a policy at the same time; 0: this one does

    def part(self, count: int) -> SearchBudget:
        """One of several equal parts."""
        seconds = None if self.seconds is None else self.seconds / count
        placements = None if self.placements is None else max(1, self.placements // count)
        return replace(self, seconds=seconds, placements=placements)


@dataclass(frozen=True)
class Evaluation:
    """What became of a placement."""

    seconds: float | None  # of a step; None: it does not fit
    refusal: Refusal | None = None  # which device's memory is too small


class SimulatedEvaluator:
    """Times from the planner's simulator, and no time for what does not fit the devices' memory."""

    def __init__(
        self,
        problem: Problem,
        groups: Groups,
        *,
        processors: Collection[int] = (),
    ) -> None:
        self.problem, self.groups = problem, groups
        self.processors = tuple(sorted(processors))
        self.num_simulated = 0  # placements that are asked for again are not among them
        self._known: dict[Devices, Evaluation] = {}
        self._evaluate: IncrementalEvaluator | None = None

    def __call__(self, placements: Sequence[Devices]) -> list[float | None]:
        """Seconds of a step with each placement; None: it does not fit."""
        return [self.evaluation(placement).seconds for placement in placements]

    def evaluation(self, placement: Sequence[int]) -> Evaluation:
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
        return self.problem.topology.num_devices

    @property
    def accelerators(self) -> tuple[int, ...]:
        """The devices that are no processors; all of them where there is nothing else."""
        return tuple(n for n in range(self.num_devices) if n not in self.processors) or self.processors

    def all_on(self, device: int) -> Devices:
        """The placement with every group on one device."""
        return (device,) * len(self.groups)

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: everything but the simulation, which it makes itself."""
        kept = {name: value for name, value in vars(self).items() if name != "_simulation"}
        return {**kept, "_evaluate": None}

    @cached_property
    def whole_on(self) -> tuple[tuple[Split, ...], ...]:
        """By device and operator: the operator whole on it."""
        return tuple(map(self.groups.splits, map(self.all_on, range(self.num_devices))))

    def _simulated(self, devices: Devices) -> Evaluation:
        self.num_simulated += 1
        splits = [self.whole_on[devices[group]][number] for number, group in enumerate(self.groups.of)]
        if self._evaluate is None:
            self._simulation = self.problem.simulation(splits, must_fit=False)
            self._evaluate = IncrementalEvaluator(self._simulation, splits)
        makespan_ns, refusal = self._evaluate(splits), self._simulation.refusal
        return (
            Evaluation(None, refusal) if refusal is not None or makespan_ns is None else Evaluation(makespan_ns / 1e9)
        )
