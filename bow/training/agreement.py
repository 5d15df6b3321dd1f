"""Collective decisions of a training's processes, taken after the same round."""

from typing import NamedTuple

from bow.cluster import World

EVERY_S = 0.25  # approximate seconds between two exchanges
MOST_ROUNDS = 1000


class Decision(NamedTuple):
    """Outcome of an exchange, the same in all processes."""

    stop: bool  # whether the training ends after this round
    seconds: float  # training time on rank 0's clock
    hopeless: bool  # whether all learners of all devices have diverged
    checkpoint: bool  # whether a checkpoint is due


class Agreement:
    """Exchanges stop and checkpoint requests between processes, at rounds that all compute identically."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.next_round = 1  # after which the next exchange is due; the first one precedes the first round
        self._last: tuple[float, int] = (0.0, 0)

    def begin(self, seconds: float, round_index: int) -> None:
        self._last = seconds, round_index
        self.next_round = round_index

    def exchange(
        self, seconds: float, round_index: int, stop: bool, hopeless: bool = False, checkpoint: bool = False
    ) -> Decision:
        """Exchange requests with the other processes, after round `next_round`."""
        since, before = self._last
        wanted = 1  # until the duration of a round is known
        if round_index > before:
            per_round = max(seconds - since, 1e-6) / (round_index - before)
            wanted = min(MOST_ROUNDS, max(1, round(EVERY_S / per_round)))
        leads = self._world.leads
        own = [stop, wanted, seconds * leads, hopeless, checkpoint and leads]
        stops, rounds, leaders, without_hope, due = self._world.sum_numbers(list(map(float, own)))
        self._last = seconds, round_index
        self.next_round = round_index + max(1, int(rounds / self._world.size))
        return Decision(bool(stops), leaders, without_hope == self._world.size, bool(due))

    def signal_of(self, own: int | None) -> int | None:
        """Return the signal that any process has received, in all of them; SIGTERM takes precedence over SIGINT."""
        asked = [number for number in self._world.all_gather(own) if number is not None]
        return max(asked, default=None)
