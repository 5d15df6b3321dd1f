"""What a training has found so far: kept whatever happens to the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from bow.planning.placement.controller import Batch, Placement


@dataclass(frozen=True)
class Found:
    """A placement that was better than all before.

    Attributes:
        placement: by operation: its device.
        time_s: of a step, in seconds.
        sample: the manieth placement it was, from 1.
    """

    placement: Placement
    time_s: float
    sample: int


@dataclass(frozen=True)
class Progress:
    """How a training stands.

    Attributes:
        updates: so many there were.
        samples: so many placements were drawn.
        failed: so many of them do not fit or failed.
        skipped: so many updates were left out, because a gradient was not finite.
        best: the best placement so far; None: none has fitted yet.
        batch: the newest placements.
        seconds: since the training began, or went on.
    """

    updates: int
    samples: int
    failed: int
    skipped: int
    best: Found | None
    batch: Batch
    seconds: float


Watch: TypeAlias = Callable[[Progress], bool | None]
"""Is told after each update how it goes; False ends the training."""


@dataclass
class Findings:
    """All that was drawn, counted, and the best of it.

    Attributes:
        samples: so many placements were drawn.
        failed: so many of them do not fit or failed.
        bests: each placement that was better than all before; the last one is the best.
    """

    samples: int = 0
    failed: int = 0
    bests: tuple[Found, ...] = ()

    @property
    def best(self) -> Found | None:
        """The best placement so far."""
        return self.bests[-1] if self.bests else None

    def add(self, batch: Batch) -> None:
        """Count what was drawn."""
        for placement, time in zip(batch.placements, batch.times, strict=True):
            self.samples += 1
            self.failed += time is None
            if time is not None and (self.best is None or time < self.best.time_s):
                self.bests = (*self.bests, Found(placement, time, self.samples))
