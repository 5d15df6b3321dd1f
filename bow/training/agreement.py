"""What the processes of a training decide together, behind the same round."""

from bow.cluster import World

EVERY_S = 0.25
"""Seconds between two exchanges, about."""

MOST_ROUNDS = 1000


class Agreement:
    """Exchanges wishes every so many rounds, which all processes count alike.

    Args:
        world: the processes.

    Attributes:
        next_round: behind which round the next exchange is.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.next_round = 1
        self._last: tuple[float, int] = (0.0, 0)

    def begin(self, seconds: float, round_index: int) -> None:
        """Training starts, or goes on, behind so many rounds."""
        self._last = seconds, round_index
        self.next_round = round_index + 1

    def exchange(self, seconds: float, round_index: int, stop: bool) -> tuple[bool, float]:
        """Tell the others, and hear, behind `next_round`.

        Args:
            seconds: on this process's clock.
            round_index: completed rounds.
            stop: whether this process wants the training to end.

        Returns:
            Whether it is to end behind this round, and the seconds on the clock of rank 0.
        """
        since, before = self._last
        per_round = max(seconds - since, 1e-6) / max(round_index - before, 1)
        wanted = min(MOST_ROUNDS, max(1, round(EVERY_S / per_round)))
        stops, rounds, leaders = self._world.add_up([float(stop), float(wanted), seconds * self._world.leads])
        self._last = seconds, round_index
        self.next_round = round_index + max(1, int(rounds / self._world.size))
        return stops > 0, leaders
