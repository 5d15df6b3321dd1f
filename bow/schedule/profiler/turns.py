"""Contestants that take turns, so that what else the machine does meets all of them alike."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

WARM_UP = 3
"""Steps before anything is timed: the first ones start threads and fill caches."""


class Contestant(Protocol):
    """A way of running a step."""

    def run(self) -> object:
        """Run one step."""

    def rest(self) -> None:
        """Its turn is over: its threads shall not be in the way of the next one's."""


def take_turns(
    contestants: Mapping[str, Contestant],
    *,
    turns: int,
    stint_s: float,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Time contestants; all have their turn before anyone has the next, every other time in reverse order.

    Example:
        >>> class Idle:
        ...     def run(self) -> None: ...
        ...     def rest(self) -> None: ...
        >>> found = take_turns({"idle": Idle()}, turns=2, stint_s=0.0)
        >>> len(found["idle"])
        2
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    try:
        for turn in range(turns):
            if progress is not None:
                progress(f"turn {turn + 1} of {turns}, {len(names)} take part")
            for name in names if turn % 2 == 0 else reversed(names):
                contestant = contestants[name]
                for _ in range(1 if seconds[name] else WARM_UP):
                    contestant.run()
                seconds[name].append(_stint(contestant, stint_s, clock))
                contestant.rest()
    finally:
        for contestant in contestants.values():
            contestant.rest()
    return {name: tuple(found) for name, found in seconds.items()}


def _stint(contestant: Contestant, stint_s: float, clock: Callable[[], float]) -> float:
    steps, began = 0, clock()
    while True:
        contestant.run()
        steps += 1
        if (passed := clock() - began) >= stint_s:
            return passed / steps
