"""Cases that take turns, so that what else the machine does hits all of them alike."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

Clock = Callable[[], float]
WARM_UP_CALLS = 3  # before anything is timed: the first call compiles, the next ones allocate


def take_turns(
    cases: Mapping[K, Callable[[], V]],
    turns: int,
    *,
    failed: Callable[[K, Exception], object] | None = None,
    after: Callable[[int, Mapping[K, list[V]]], bool | None] | None = None,
) -> dict[K, list[V]]:
    """In every turn each case measures once, in every other turn in reverse order.

    Args:
        cases: what makes a measurement, warm, by name.
        turns: how often each has its turn.
        failed: told of a case that raises, which takes part no longer; None: the race ends with that error.
        after: called behind every turn with its number and all measurements; True ends the race.

    Returns:
        By case that has not failed: its measurements, an entry for each turn.
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
    """Samples per second of a case in a measurement window of so many seconds.

    The first call fills the caches and wakes the threads, so it does not count, unless it takes longer than the window:
    then it is the measurement, and a hopelessly slow case costs one call a turn.

    Args:
        run: does a piece of work and returns how many samples that was.
        seconds: of the window.
        clock: seconds that only go up.
    """
    began = clock()
    samples, now = run(), clock()
    if now - began < seconds:
        samples, began = 0, now
    while now - began < seconds:
        samples += run()
        now = clock()
    return samples / (now - began)


def warm_up(run: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Call a case a few times; the seconds of the first call, which compiles where something is compiled."""
    began = clock()
    run()
    first_s = clock() - began
    for _ in range(WARM_UP_CALLS - 1):
        run()
    return first_s
