"""Made-up sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.sweep_rule import Point, Trial

EPOCHS = 6


def trial(
    mu: float | None,
    lr: float,
    accuracy: float,
    *,
    model: str = "mlp",
    learners: int = 2,
    seed: int = 0,
    reaches_goal_in: int = 1,
    diverged: bool = False,
) -> Trial:
    """A training that has its accuracy from one epoch on, and 50 % before."""
    accuracies = [0.5 if epoch < reaches_goal_in else accuracy for epoch in range(1, EPOCHS + 1)]
    return Trial(Point(model, learners, mu, lr, seed), tuple(accuracies), diverged, 0, 1.0)


def sweep(by_mu: Mapping[float | None, Sequence[float]], **common: object) -> list[Trial]:
    """One training for every mu and learning rate 0.1, 0.2, ..., with these accuracies."""
    return [
        trial(mu, round(0.1 * index, 1), accuracy, **common)  # type: ignore[arg-type]
        for mu, accuracies in by_mu.items()
        for index, accuracy in enumerate(accuracies, 1)
    ]
