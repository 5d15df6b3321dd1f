"""Made-up trainings."""

from __future__ import annotations

from benchmarks.peers.training import DIVERGED, EPOCHS, FAILED, FINAL, REACHED, Choice, Look, Training

EVERY = 100
"""Samples between evaluations."""


def training(
    contestant: str = "pytorch",
    *,
    seed: int = 1,
    looks: int = 4,
    throughput: float = 10.0,
    rest_s: float = 0.0,
    ending: str = REACHED,
    stage: str = FINAL,
    batch_size: int = 16,
    lr: float = 0.01,
    best: float = 0.9,
    ran_as: str | None = None,
    why: str | None = None,
) -> Training:
    """A training that is evaluated so many times, and has its best accuracy in the end."""
    curve = [
        Look(rest_s + number * EVERY / throughput, number * EVERY, best * number / looks)
        for number in range(1, looks + 1)
    ]
    return Training(
        Choice(contestant, batch_size, lr, 1),
        seed,
        stage,
        ending,
        () if ending == FAILED else tuple(curve),
        ran_as,
        why,
    )


def not_reached(contestant: str, *, seed: int = 1) -> Training:
    """One that stays below the target."""
    return training(contestant, seed=seed, ending=EPOCHS, best=0.85, looks=8)


def diverged(contestant: str, *, seed: int = 1, lr: float = 0.01) -> Training:
    """One that ends in numbers that are not finite."""
    return training(contestant, seed=seed, ending=DIVERGED, looks=1, best=0.1, lr=lr)


def failed(contestant: str, *, seed: int = 1, why: str = "RuntimeError: no compiler") -> Training:
    """One whose process ended with an error."""
    return training(contestant, seed=seed, ending=FAILED, why=why)
