"""Measure cases in turns, so that other load on the machine affects all of them equally."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

Clock = Callable[[], float]
WARM_UP_CALLS = 10  # the first call compiles, the next ones allocate; bow checks a capture in rounds 1, 2, 4 and 8


def take_turns(
    cases: Mapping[K, Callable[[], V]],
    turns: int,
    *,
    failed: Callable[[K, Exception], object] | None = None,
    after: Callable[[int, Mapping[K, list[V]]], bool | None] | None = None,
) -> dict[K, list[V]]:
    """Measure each case once per turn, every other turn in reverse order.

    Args:
        cases: by name: functions that return a measurement, warmed up.
        turns: number of turns.
        failed: called for a case that raises, which is then removed; None: the race ends with that error.
        after: called after every turn with its number and all measurements; True ends the race.

    Returns:
        By case that has not failed: its measurements, one for each turn.
    """
    found: dict[K, list[V]] = {name: [] for name in cases}
    for turn in range(turns):
        for name in list(found) if turn % 2 == 0 else reversed(list(found)):
            try:
                found[name].append(cases[name]())
            except Exception as error:
                if failed is None:
                    raise
                failed(name, error)
                del found[name]
        if after is not None and after(turn, found):
            break
    return found


def rate(run: Callable[[], int], seconds: float, clock: Clock = time.perf_counter) -> float:
    """Return samples per second of a case in a measurement window.

    The first call fills the caches and wakes the threads and is not counted, unless it takes longer than the window:
    then it is the measurement, so that a very slow case costs one call per turn.

    Args:
        run: does a piece of work and returns the number of samples.
        seconds: length of the window.
        clock: a monotonic clock in seconds.
    """
    began = clock()
    samples, now = run(), clock()
    if now - began < seconds:
        samples, began = 0, now
    while now - began < seconds:
        samples += run()
        now = clock()
    return samples / (now - began)


def warm_up(run: Callable[[], object]) -> float:
    """Call a case a few times; returns the seconds of the first call, which may compile."""
    began = time.perf_counter()
    run()
    first_s = time.perf_counter() - began
    for _ in range(WARM_UP_CALLS - 1):
        run()
    return first_s
