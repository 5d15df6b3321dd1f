"""With how many threads an operator runs, from the times that a cost model predicts."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Times: TypeAlias = Mapping[int, int]
"""Of one operator, by number of threads: nanoseconds."""


def candidates(times: Times, count: int = 3) -> tuple[int, ...]:
    """The numbers of threads with which an operator is fastest, the best first; of equal times the fewest threads.

    Example:
        >>> candidates({16: 2100, 18: 1500, 20: 1300, 34: 2400})
        (20, 18, 16)

    References:
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D, strategy 3.
    """
    return tuple(sorted(times, key=lambda threads: (times[threads], threads))[:count])


def best_threads(times: Times) -> int:
    """The number of threads with which an operator is fastest, which strategy 1 gives it."""
    return candidates(times, count=1)[0]


def threads_by_kind(times: Sequence[Times], kinds: Sequence[str]) -> dict[str, int]:
    """One number of threads for each type of operator: the best one of its most time-consuming instance.

    Instances are compared by their least times; of equal ones the first counts. All then use the same number, and the
    teams of threads stay as they are.

    Example:
        >>> threads_by_kind([{1: 9, 2: 5}, {1: 3, 2: 4}, {1: 2, 2: 2}], ["conv", "conv", "relu"])
        {'conv': 2, 'relu': 1}

    References:
        Liu et al., 2019, section III-D, strategy 2.
    """
    largest: dict[str, Times] = {}
    for kind, own in zip(kinds, times, strict=True):
        if kind not in largest or min(own.values()) > min(largest[kind].values()):
            largest[kind] = own
    return {kind: best_threads(own) for kind, own in largest.items()}


def classes_by_scaling(times: Sequence[Times], sizes: Sequence[int], efficiency: float = 0.5) -> list[int]:
    """The class of executors that suits each operator, by how well it scales: `prefers` of a list scheduler.

    That is the largest team in which a thread does at least `efficiency` times as much as in the smallest:
    `smallest * time(smallest) >= efficiency * size * time(size)`. The paper says that operators are classified by how
    well they scale, and not how.

    Example:
        >>> classes_by_scaling([{1: 80, 2: 45, 8: 20}, {1: 80, 2: 44, 8: 41}], sizes=[1, 2, 8])
        [2, 1]

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 6.
    """
    smallest = sizes[0]

    def scales(own: Times, size: int) -> bool:
        return smallest * own[smallest] >= efficiency * size * own[size]

    return [max(number for number, size in enumerate(sizes) if number == 0 or scales(own, size)) for own in times]
