"""Time alternatives in turns, so that disturbances by other load affect all alike."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

WARM_UP = 3  # runs before timing: the first ones compile, start threads and fill caches


class TimedCase(Protocol):
    """A case to time."""

    def run(self) -> object:
        """Run it once."""

    def rest(self) -> None:
        """Called after its window: its threads must not disturb the next case."""


def time_in_turns(
    cases: Mapping[str, TimedCase],
    *,
    turns: int,
    window_s: float,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Return seconds per run, by case and turn; in every turn each case has one window, in alternating order."""
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
    """Return seconds per run, over a window of `window_s` seconds, of at least one run."""
    runs, began = 0, clock()
    while True:
        run()
        runs += 1
        if (passed := clock() - began) >= window_s:
            return passed / runs


def ratio_in_turns(own: Sequence[float], other: Sequence[float]) -> float:
    """Return the median over turns of the ratio of two cases' seconds: momentary noise affects both."""
    return statistics.median(first / second for first, second in zip(own, other, strict=True))
