"""What searches need of a simulation."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from bow.planning.problem.split import Split


class Simulated(Protocol):
    """A strategy whose time is known, and that can be changed; `Simulation` is one."""

    @property
    def makespan_ns(self) -> int:
        """Nanoseconds of a step."""

    def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
        """What a step takes with other splits of some operators, by operator; None: it does not fit.

        A number above the limit may be less than the step's time. `undo` follows, or `accept` of what fits the limit.
        """

    def accept(self) -> None:
        """Keep what was proposed."""

    def undo(self) -> None:
        """Go back to before it was proposed."""


class IncrementalEvaluator:
    """Simulates one strategy after the other by what differs between them.

    Args:
        simulation: of any strategy for the graph.
        splits: by operator, of that strategy.
    """

    def __init__(self, simulation: Simulated, splits: Sequence[Split]) -> None:
        self._simulation = simulation
        self._splits = list(splits)

    def __call__(self, splits: Sequence[Split], limit_ns: int | None = None) -> int | None:
        """What a step takes, in nanoseconds; None: it does not fit."""
        pairs = enumerate(zip(self._splits, splits, strict=True))
        changes = {operator: new for operator, (old, new) in pairs if new != old}
        if not changes:
            return self._simulation.makespan_ns
        makespan = self._simulation.propose_changes(changes, limit_ns)
        if makespan is None or (limit_ns is not None and makespan > limit_ns):
            self._simulation.undo()
        else:
            self._simulation.accept()
            self._splits = list(splits)
        return makespan
