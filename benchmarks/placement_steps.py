"""Time real steps with a placement: the reward of the paper, measured on the devices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bow.planning.placement.groups import Devices, SimulatedEvaluator
from bow.planning.problem.partition import Partition
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime
from bow.replicas import OptimizerFactory

STEPS = 10
"""Steps per placement; the first one, which takes longer, is not counted."""


class RealSteps:
    """Runs and times steps with placements on the devices of a process group.

    The first process requests placements by calling this object; all others `serve` until it is closed. Placements that
    exceed the devices' memory in the simulation, or are not allowed, are not run.

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.4.
    """

    def __init__(
        self,
        captured: CapturedOperators,
        model: nn.Module,
        batch: Any,
        optimizer: OptimizerFactory,
        evaluator: SimulatedEvaluator,
        group: ProcessGroup,
        *,
        steps: int = STEPS,
    ) -> None:
        self.evaluator = evaluator
        self._captured, self._model, self._batch = captured, model, batch
        self._optimizer, self._group, self._steps = optimizer, group, steps

    def __call__(self, placements: Sequence[Devices]) -> list[float | None]:
        """Return the seconds of a step with each placement; None: it does not fit, or is not allowed."""
        return [self._asked(tuple(each)) for each in placements]

    def serve(self) -> None:
        """Take part in the requests of the first process, until it closes this object."""
        nothing: Devices | None = None
        while (placement := self._group.all_gather(nothing)[0]) is not None:
            self._run(placement)

    def close(self) -> None:
        """Let the other processes continue."""
        self._group.all_gather(None)

    def _asked(self, placement: Devices) -> float | None:
        if self.evaluator.seconds(placement) is None:
            return None
        self._group.all_gather(placement)
        return self._run(placement)

    def _run(self, placement: Devices) -> float:
        groups = self.evaluator.groups
        partition = Partition(groups.graph.hash, groups.splits(placement))
        runtime = TileRuntime(self._captured, partition, self._model, self._optimizer, self._group)
        times = []
        for step in range(self._steps):
            self._group.sum_all([torch.zeros(1)])  # barrier
            began = time.perf_counter()
            runtime.step(self._batch, step)
            times.append(time.perf_counter() - began)
        return statistics.fmean(max(each) for each in list(zip(*self._group.all_gather(times), strict=True))[1:])
