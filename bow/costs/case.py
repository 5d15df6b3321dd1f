"""How an operator runs: with how many threads, and whether two of them share a cache."""

from collections.abc import Sequence
from dataclasses import dataclass

from bow.errors import SettingError


@dataclass(frozen=True, order=True)
class Case:
    """A way to run an operator, one thread to a core.

    Attributes:
        threads: how many.
        shared: two threads to each cache that two cores share; else one thread to each.

    Raises:
        SettingError: no thread, or an odd number where two share a cache each: one cache would have less to do.

    Example:
        >>> print(Case(18), "or", Case(20, shared=True))
        18 threads or 20 threads, two to a cache

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, section III-B.
    """

    threads: int
    shared: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise SettingError(f"threads must be at least 1, got {self.threads}")
        if self.shared and self.threads % 2:
            raise SettingError(f"threads must be even where two share a cache, got {self.threads}; leave shared out")

    def __str__(self) -> str:
        counted = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{counted}, two to a cache" if self.shared else counted


def lanes(cores: int, caches: bool = True) -> tuple[tuple[Case, ...], ...]:
    """All cases of a machine by whether threads share a cache, ascending; those that do not come first.

    Example:
        >>> alone, sharing = lanes(68)
        >>> len(alone), alone[-1].threads, len(sharing), sharing[-1].threads
        (34, 34, 34, 68)
    """
    if cores < 1:
        raise SettingError(f"cores must be at least 1, got {cores}")
    if not caches:
        return (tuple(map(Case, range(1, cores + 1))),)
    alone = tuple(map(Case, range(1, (cores + 1) // 2 + 1)))
    sharing = tuple(Case(threads, shared=True) for threads in range(2, cores + 1, 2))
    return (alone, sharing) if sharing else (alone,)


def cases(cores: int, caches: bool = True) -> tuple[Case, ...]:
    """All cases of a machine: 68 for 68 cores of which every two share a cache."""
    return tuple(case for lane in lanes(cores, caches) for case in lane)


def evenly(chosen_from: Sequence[Sequence[Case]], count: int) -> tuple[Case, ...]:
    """Cases that stand for all: equally many from every lane, in the middle of equal parts of it.

    What does not divide goes to the last lanes, which reach further.

    Example:
        >>> [str(case) for case in evenly(lanes(68), 3)]
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
