"""Which operators a step waits for: those on a chain of tasks that ends it."""

import itertools
import random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.step_model import StepModel

RENEWED = 20
"""The chain is looked at anew after so many draws: until then few changes were accepted."""


class Timed(Protocol):
    """A strategy whose tasks have times; `Simulation` is one."""

    @property
    def model(self) -> StepModel:
        """Of the step."""

    def task_table(self) -> NDArray[np.int64]:
        """[task, 3]: rank, start and end of each task, in nanoseconds."""


class CriticalOperators:
    """Draws operators from a chain of tasks that ends the step, the more often the more of its time they take.

    A task begins when another one ends: one that it waits for, or one that had its place before. From the last task
    back to the start of the step that makes a chain without a gap, and only who shortens it makes the step faster. Of
    several tasks that end at the right time one is drawn.

    Args:
        simulation: of the strategy as it is when an operator is drawn.
        source: of random numbers.

    References:
        Kwok, Ahmad: Dynamic critical-path scheduling, 1996, which also looks first at what the end depends on now.
    """

    def __init__(self, simulation: Timed, source: random.Random) -> None:
        self._simulation, self._source = simulation, source
        self._operators: list[int] = []
        self._ends: list[float] = []
        self._draws = 0

    def draw(self) -> int | None:
        """An operator's position; None: no operator takes any time."""
        if self._draws % RENEWED == 0:
            shares = critical_operators(self._simulation.task_table(), self._simulation.model, self._source)
            self._operators, self._ends = [*shares], [*itertools.accumulate(shares.values())]
        self._draws += 1
        if not self._operators:
            return None
        return self._source.choices(self._operators, cum_weights=self._ends)[0]


def critical_operators(table: NDArray[np.int64], model: StepModel, source: random.Random) -> dict[int, float]:
    """Nanoseconds by operator on a chain that ends the step; sums and updates are shared equally by their readers."""
    table = table[table[:, 2] > table[:, 1]]
    table = table[np.argsort(table[:, 2], kind="stable")]
    ends = table[:, 2]
    found: dict[int, float] = {}
    at = int(ends[-1]) if len(ends) else 0
    while at > 0:
        those = range(*(int(np.searchsorted(ends, at, side)) for side in ("left", "right")))
        rank, start, _ = table[source.choice(those)].tolist()
        readers = _operators_of(rank, model)
        for reader in readers:
            found[reader] = found.get(reader, 0.0) + (at - start) / len(readers)
        at = start
    return found


def _operators_of(rank: int, model: StepModel) -> tuple[int, ...]:
    """Whose splits a task of a rank depends on."""
    operator, group = model.ranks.operator(rank), model.ranks.group(rank)
    if operator is not None:
        return (operator % len(model.graph.operators),)
    return () if group is None else model.weight_groups[group % len(model.weight_groups)].readers
