"""The best placements that were drawn so far, which a policy learns to draw again."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Elites:
    """The best placements so far, each once, the fastest first.

    A policy that is told of each placement only once forgets the best: with a few thousand samples in all, most of
    what they say is lost. So what was best is repeated with every update. It is the policy's own, and no other's.

    Args:
        count: so many are kept.
        found: seconds and placement of each.

    Example:
        >>> elites = Elites(2)
        >>> elites.add([(0, 1), (1, 1), (0, 1), (1, 0)], [3.0, 2.0, 3.0, None])
        >>> elites.placements
        [(1, 1), (0, 1)]

    References:
        Oh, Guo, Singh, Lee: Self-imitation learning, 2018. Gao, Chen, Li: Post: device placement with cross-entropy
        minimization and proximal policy optimization, 2018.
    """

    count: int
    found: tuple[tuple[float, tuple[int, ...]], ...] = ()

    @property
    def placements(self) -> list[tuple[int, ...]]:
        """The fastest first."""
        return [placement for _, placement in self.found]

    def add(self, placements: Sequence[tuple[int, ...]], times: Sequence[float | None]) -> None:
        """Look at what was drawn."""
        if self.count:
            pairs = zip(times, placements, strict=True)
            fits = {(time, placement) for time, placement in pairs if time is not None}
            self.found = tuple(sorted({*self.found, *fits})[: self.count])
