"""What the processes of a training decide together, behind the same round."""

from typing import NamedTuple

from bow.cluster import World

EVERY_S = 0.25  # seconds between two exchanges, about
MOST_ROUNDS = 1000


class Decision(NamedTuple):
    """What all have heard."""

    stop: bool  # whether the training ends behind this round
    seconds: float  # on the clock of rank 0
    hopeless: bool  # whether no device has a learner that stays finite
    checkpoint: bool  # whether a checkpoint is due


class Agreement:
    """Exchanges wishes every so many rounds, which all processes count alike."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.next_round = 1  # behind which the next exchange is; the first one is before the first round
        self._last: tuple[float, int] = (0.0, 0)

    def begin(self, seconds: float, round_index: int) -> None:
        self._last = seconds, round_index
        self.next_round = round_index

    def exchange(
        self, seconds: float, round_index: int, stop: bool, hopeless: bool = False, checkpoint: bool = False
    ) -> Decision:
        """Tell the others, and hear, behind `next_round`."""
        since, before = self._last
        wanted = 1  # as long as nobody knows what a round takes
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
        """The signal that any process was asked to end by, for all behind the last round; SIGTERM before SIGINT."""
        asked = [number for number in self._world.all_gather(own) if number is not None]
        return max(asked, default=None)
