"""Placements of threads, all of a machine, and some that stand for all."""

from collections.abc import Sequence

from bow.errors import SettingError
from bow.schedule.climbing import Threads, placements


def cases(cores: int, caches: bool = True) -> tuple[Threads, ...]:
    """All cases of a machine: 68 for 68 cores of which every two share a cache."""
    return tuple(case for lane in placements(cores, caches) for case in lane)


def evenly(chosen_from: Sequence[Sequence[Threads]], count: int) -> tuple[Threads, ...]:
    """Cases that stand for all: equally many from every lane, in the middle of equal parts of it.

    What does not divide goes to the last lanes, which reach further.

    Example:
        >>> [str(case) for case in evenly(placements(68), 3)]
        ['18 threads', '18 threads, two to a cache', '52 threads, two to a cache']
    """
    each, rest = divmod(count, len(chosen_from))
    shares = [each + (index >= len(chosen_from) - rest) for index in range(len(chosen_from))]
    if count < 1 or any(share > len(lane) for share, lane in zip(shares, chosen_from, strict=True)):
        raise SettingError(f"count must be at least 1 and fit the {sum(map(len, chosen_from))} cases, got {count}")
    return tuple(
        lane[(2 * turn + 1) * len(lane) // (2 * share)]
        for share, lane in zip(shares, chosen_from, strict=True)
        for turn in range(share)
    )
