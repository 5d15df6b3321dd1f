"""Evaluation of placements: the step time of each, and the budget of a search."""

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
    """Limits of a placement method; the first one reached ends it."""

    seconds: float | None = None  # None: unlimited
    placements: int | None = None  # number of placements evaluated; None: unlimited
    workers: int = 0  # processes that sample and evaluate placements for a policy; 0: this process does

    def part(self, count: int) -> SearchBudget:
        seconds = None if self.seconds is None else self.seconds / count
        placements = None if self.placements is None else max(1, self.placements // count)
        return replace(self, seconds=seconds, placements=placements)


@dataclass(frozen=True)
class Evaluation:
    """Outcome of a placement."""

    seconds: float | None  # step time; None: does not fit
    refusal: Refusal | None = None  # the device whose memory is too small


class SimulatedEvaluator:
    """Evaluates placements with the planner's simulator; a placement that does not fit into memory has no time."""

    def __init__(
        self,
        problem: Problem,
        groups: Groups,
        *,
        processors: Collection[int] = (),
    ) -> None:
        self.problem, self.groups = problem, groups
        self.processors = tuple(sorted(processors))
        self.num_simulated = 0  # distinct placements only
        self._known: dict[Devices, Evaluation] = {}
        self._evaluate: IncrementalEvaluator | None = None

    def __call__(self, placements: Sequence[Devices]) -> list[float | None]:
        """Return the step time in seconds of each placement; None: does not fit."""
        return [self.evaluation(placement).seconds for placement in placements]

    def evaluation(self, placement: Sequence[int]) -> Evaluation:
        devices = tuple(map(int, placement))
        if devices not in self._known:
            self._known[devices] = self._simulated(devices)
        return self._known[devices]

    def result(self, placement: Sequence[int]) -> SimulationResult:
        """Return all tasks, times and memory of a step, whether the placement fits or not."""
        return self.problem.simulate(self.groups.splits(tuple(placement)))

    @property
    def num_devices(self) -> int:
        return self.problem.topology.num_devices

    @property
    def accelerators(self) -> tuple[int, ...]:
        """The devices that are not processors; the processors if there are no others."""
        return tuple(n for n in range(self.num_devices) if n not in self.processors) or self.processors

    def all_on(self, device: int) -> Devices:
        return (device,) * len(self.groups)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle everything except the native simulation, which another process creates itself."""
        kept = {name: value for name, value in vars(self).items() if name != "_simulation"}
        return {**kept, "_evaluate": None}

    @cached_property
    def whole_on(self) -> tuple[tuple[Split, ...], ...]:
        """By device and operator: the split that places the operator whole on the device."""
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
