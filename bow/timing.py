"""Timing ways of doing the same against each other, in turns: what else the machine does hits all alike."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

WARM_UP = 3  # runs before anything is timed: the first ones compile, start threads and fill caches


class TimedCase(Protocol):
    """Something that is timed."""

    def run(self) -> object:
        """Do it once."""

    def rest(self) -> None:
        """Its window is over: its threads shall not be in the way of the next case."""


def time_in_turns(
    cases: Mapping[str, TimedCase],
    *,
    turns: int,
    window_s: float,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Seconds of a run, by case and turn; every case has a window before any has the next, in changing order."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    try:
        for turn in range(turns):
            if progress is not None:
                progress(f"turn {turn + 1} of {turns}, {len(cases)} take part")
            for name in cases if turn % 2 == 0 else reversed(list(cases)):
                for _ in range(1 if seconds[name] else WARM_UP):
                    cases[name].run()
                seconds[name].append(time_window(cases[name].run, window_s, clock))
                cases[name].rest()
    finally:
        for case in cases.values():
            case.rest()
    return {name: tuple(found) for name, found in seconds.items()}


def time_window(run: Callable[[], object], window_s: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a run, over a window of so many seconds, one run at least."""
    runs, began = 0, clock()
    while True:
        run()
        runs += 1
        if (passed := clock() - began) >= window_s:
            return passed / runs


def ratio_in_turns(own: Sequence[float], other: Sequence[float]) -> float:
    """The median over turns of one case's seconds over another's: noise of a moment hits both."""
    return statistics.median(first / second for first, second in zip(own, other, strict=True))
