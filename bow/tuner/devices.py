"""Several devices that train one model: how many learners each, for what all of them do together."""

from collections.abc import Mapping, Sequence

from bow.tuner.online import STAY, MeasurementWindow, OnlineTuner, TunerDecision


def balance(round_s: Sequence[Mapping[int, float]]) -> tuple[int, ...]:
    """Learners by device with the most samples per second, a round taking as long as its slowest device."""
    best: tuple[int, ...] = ()  # for each time that a round may take, every device has as many as it does by then
    most = -1.0
    for limit in sorted({seconds for device in round_s for seconds in device.values()}):
        within = [[count for count, seconds in device.items() if seconds <= limit] for device in round_s]
        if not all(within):
            continue
        learners = tuple(map(max, within))
        rate = sum(learners) / limit
        if rate > most:
            best, most = learners, rate
    return best


class DeviceTuners:
    """One `OnlineTuner` for each device; one tunes at a time, by the samples of all, until it has settled."""

    def __init__(self, tuners: Sequence[OnlineTuner]) -> None:
        # A device that waits for the others should take learners although its own tasks get no faster, so that each
        # tuner gets the samples of all; since that number depends on all of them, one tunes at a time.
        self.tuners = tuple(tuners)
        self.turn = 0  # the device that tunes at present
        self._others = set(range(1, len(self.tuners)))
        self._known = self._state()

    @property
    def settled(self) -> bool:
        """Whether every device has settled, all others being as they are."""
        return not self._others and self.tuners[self.turn].settled

    def update(self, samples: float, seconds: float, learners: Sequence[int] | None = None) -> list[TunerDecision]:
        """Take in a window, in which devices had so many learners; None: as many as their tuners have said."""
        tuner = self.tuners[self.turn]
        count = tuner.learners if learners is None else learners[self.turn]
        decision = tuner.update(MeasurementWindow(samples, seconds, count))
        decisions = [decision if device == self.turn else STAY for device in range(len(self.tuners))]
        if tuner.settled:
            self._pass_on()
        return decisions

    def failed(self, device: int, learners: int) -> None:
        """Hear that so many learners of a device ran out of memory, and that it has one fewer by now."""
        self.tuners[device].failed(learners)
        if device != self.turn:
            self.tuners[self.turn].restart()

    def _pass_on(self) -> None:
        """Give the turn to the next device that needs one; where none does, it stays until something was tried."""
        state = self._state()
        if state[:2] != self._known[:2]:
            self._others = set(range(len(self.tuners))) - {self.turn}
        tried = state != self._known
        self._known = state
        if len(self.tuners) == 1 or (not self._others and not tried):
            return
        following = [(self.turn + ahead) % len(self.tuners) for ahead in range(1, len(self.tuners) + 1)]
        self.turn = next((device for device in following if device in self._others), following[0])
        if self.turn in self._others:  # what it knew of throughput was with others as they are no more
            self.tuners[self.turn].restart()
        self._others.discard(self.turn)
        self._known = self._state()

    def _state(self) -> tuple[int, int, int]:
        """Learners and drifts of the device whose turn it is, and how often it changed."""
        tuner = self.tuners[self.turn]
        return tuner.learners, tuner.drifts, len(tuner.changes)
