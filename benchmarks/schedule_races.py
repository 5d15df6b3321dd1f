"""Results of the races of one network."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.harness import quartiles, ratios
from benchmarks.schedule_cases import PYTORCH

Times: TypeAlias = Mapping[str, Sequence[float]]  # by name: seconds of a step in every turn

# Sequential contestants within this factor of the best are timed again
CLOSE = 1.1


@dataclass(frozen=True)
class Races:
    """The race of all contestants, and the final among the best.

    The first race selects the best, and the final measures them, so that lucky outliers of the first do not count.
    """

    race: Times  # all contestants
    sequential: Collection[str]  # names of the sequential baselines
    side_by_side: Collection[str]  # names of those that run operators concurrently
    uniform: Collection[str]  # names of those that a user could configure by hand
    choice: str  # bow's choice from its own measurements
    final: Times = field(default_factory=dict)  # times of `finalists`; empty before the final

    @property
    def finalists(self) -> list[str]:
        """Return the finalists: the best of each kind, bow's choice, and sequential cases close to the best.

        The best sequential cases of PyTorch and of the native runtime always take part.
        """
        best_s = statistics.median(self.race[fastest(self.race, self.sequential)])
        close = [name for name in self.sequential if statistics.median(self.race[name]) <= CLOSE * best_s]
        leaders = [fastest(self.race, kind) for kind in (self._plain, self._native)]
        return list(dict.fromkeys([*close, *leaders, self.best_side_by_side, self.manual, self.choice]))

    @property
    def best(self) -> str:
        """The fastest contestant of the race."""
        return fastest(self.race, [*self.sequential, *self.side_by_side])

    @property
    def best_side_by_side(self) -> str:
        """The fastest in the race that runs operators concurrently."""
        return fastest(self.race, self.side_by_side)

    @property
    def manual(self) -> str:
        """The fastest in the race that a user could configure by hand."""
        return fastest(self.race, self.uniform)

    @property
    def best_sequential(self) -> str:
        """The fastest sequential one in the final itself, so that luck counts in favour of the baseline."""
        return fastest(self.final, self.sequential)

    def speed_up(self, name: str, over: str) -> dict[str, Any]:
        """Speed-up over another contestant in the final."""
        return quartiles(ratios(self.final[over], self.final[name]), 4)

    def as_dict(self) -> dict[str, Any]:
        roles = {
            "choice": self.choice,
            "best": self.best,
            "side_by_side": self.best_side_by_side,
            "manual": self.manual,
        }
        return {
            "sequential": self.best_sequential,
            "policies": {role: self._judged(name) for role, name in roles.items()},
            "race_ms": {name: quartiles(own, 4, scale=1e3) for name, own in self.race.items()},
            "final_ms": {name: quartiles(own, 4, scale=1e3) for name, own in self.final.items()},
        }

    def _judged(self, name: str) -> dict[str, Any]:
        overs = {
            "speed_up": self.best_sequential,
            "over_pytorch": fastest(self.final, self._plain),
            "over_native": fastest(self.final, self._native),
        }
        return {"name": name, **{key: self.speed_up(name, over) for key, over in overs.items()}}

    @property
    def _plain(self) -> list[str]:
        return [name for name in self.sequential if name.startswith(PYTORCH)]

    @property
    def _native(self) -> list[str]:
        return [name for name in self.sequential if not name.startswith(PYTORCH)]


def fastest(times: Times, names: Collection[str]) -> str:
    """Return the name with the smallest median, among those that were timed."""
    return min((name for name in times if name in names), key=lambda name: statistics.median(times[name]))


RUNTIME = "native runtime over PyTorch, one thread"
CRITICAL = "critical path first over first come"
AT_ONCE = "small operators at once"
STAY = "staying where the operator before ran"
FIXED = "the simulated order over asking each time"
BY_KIND = "strategy 2 over 1: one number of threads a type"
CO_RUNNING = "strategy 3 over 2: side by side"


def effects(race: Times) -> dict[str, Any]:
    """Return the speed-up of each scheduling idea, by idea.

    If several numbers of executors were timed, uses the one with which critical path first is fastest.
    """
    shapes = [name.removeprefix("first come, ") for name in race]
    critical = fastest(race, [f"critical path, {each}" for each in shapes])
    with_shape = critical.removeprefix("critical path, ")
    at_once = f"critical path, small at once, {with_shape}"
    compared = {
        RUNTIME: ("sequential, 1 thread", "PyTorch, 1 thread"),
        CRITICAL: (critical, f"first come, {with_shape}"),
        AT_ONCE: (at_once, critical),
        STAY: (f"critical path, stay, {with_shape}", at_once),  # runs small ones at once as well
        FIXED: (f"critical path, fixed order, {with_shape}", critical),
        BY_KIND: ("strategy 2", "strategy 1"),
        CO_RUNNING: ("strategy 3", "strategy 2"),
    }
    return {idea: quartiles(ratios(race[over], race[own]), 4) for idea, (own, over) in compared.items()}
