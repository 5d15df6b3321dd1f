"""The search for batch size and learning rate, the same for plain PyTorch and for bow; pure functions."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from benchmarks.peers.training import DIVERGED, FAILED, Training, by_choice

MARGIN = 1.25  # a setting that takes longer than this times the best time so far is stopped

RULE = (
    "from the middle of the learning rates it goes up one by one while that is better, and then likewise down; so it "
    "does with the batch sizes, each of which begins with the best learning rate of its neighbour; better is a shorter "
    "time to the target, or, where that is not reached, a higher accuracy; a training ends when it has taken longer "
    f"than {MARGIN:g} times the shortest time so far to the target"
)

Score: TypeAlias = tuple[int, float]  # lower is better


def score(training: Training) -> Score:
    """Return the score of a training of the sweep.

    Of two that diverge, the one with the lower learning rate is better, so that the search descends.
    """
    if training.ending == FAILED:
        return 3, 0.0
    if training.ending == DIVERGED:
        return 2, training.choice.lr
    if training.time_s is None:
        return 1, -training.best_accuracy
    return 0, training.time_s


def best(swept: Sequence[Training], count: int) -> list[Training]:
    """Return the best `count` trainings of a sweep that reached the target; if none did, the best of all."""
    ranked = sorted(swept, key=score)
    return [training for training in ranked[:count] if training.time_s is not None] or ranked[:1]


def fastest(rehearsals: Sequence[Training]) -> Training:
    """Return the rehearsal with the median throughput of the fastest choice; of an even number the lower one."""
    middles = []
    for own in by_choice(rehearsals).values():
        own.sort(key=lambda training: training.throughput)
        middles.append(own[(len(own) - 1) // 2])
    return max(middles, key=lambda training: training.throughput)


def climb(count: int, start: int, score_at: Callable[[int], Score]) -> int:
    """Ascend while the score improves, then descend likewise.

    Example:
        >>> climb(6, 2, lambda place: (0, abs(place - 4)))
        4
    """
    best, best_score = start, score_at(start)
    for step in (1, -1):
        while 0 <= best + step < count and (found := score_at(best + step)) < best_score:
            best, best_score = best + step, found
    return best


def sweep(
    batch_sizes: Sequence[int],
    lrs: Sequence[float],
    limit_s: float,
    train: Callable[[int, float, float], Training],
) -> Training:
    """Find a batch size and a learning rate."""
    seen: dict[tuple[int, int], Training] = {}
    best_rates: dict[int, int] = {}

    def score_of(size: int, rate: int) -> Score:
        if (size, rate) not in seen:
            times = [training.time_s for training in seen.values() if training.time_s is not None]
            seen[size, rate] = train(
                batch_sizes[size], lrs[rate], min([limit_s, *(MARGIN * time_s for time_s in times)])
            )
        return score(seen[size, rate])

    def best_score(size: int) -> Score:
        if size not in best_rates:
            nearest = min(best_rates, key=lambda other: abs(other - size), default=None)
            start = _middle(lrs) if nearest is None else best_rates[nearest]
            best_rates[size] = climb(len(lrs), start, lambda rate: score_of(size, rate))
        return score_of(size, best_rates[size])

    size = climb(len(batch_sizes), _middle(batch_sizes), best_score)
    return seen[size, best_rates[size]]


def _middle(values: Sequence[object]) -> int:
    return (len(values) - 1) // 2
