"""Tuning of several devices that train one model: the number of learners of each."""

from collections.abc import Mapping, Sequence

from bow.tuner.online import NO_CHANGE, MeasurementWindow, OnlineTuner, TunerDecision


def balance(round_s: Sequence[Mapping[int, float]]) -> tuple[int, ...]:
    """Return the learners by device with the most samples per second, given that the slowest device sets the pace."""
    best: tuple[int, ...] = ()  # for each round time, every device has as many as finish by then
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
    """One `OnlineTuner` per device; they tune in turn, by the samples of all devices, until each has settled."""

    def __init__(self, tuners: Sequence[OnlineTuner]) -> None:
        # A device that waits for the others should add learners even if its own tasks get no faster, so that each
        # tuner gets the samples of all; as that number depends on all devices, one tunes at a time.
        self.tuners = tuple(tuners)
        self.turn = 0  # the device that is tuning
        self._others = set(range(1, len(self.tuners)))
        self._known = self._state()

    @property
    def settled(self) -> bool:
        """Whether every device has settled, given the others."""
        return not self._others and self.tuners[self.turn].settled

    def update(self, samples: float, seconds: float, learners: Sequence[int] | None = None) -> list[TunerDecision]:
        """Process a window in which devices had `learners`; None: as many as their tuners decided."""
        tuner = self.tuners[self.turn]
        count = tuner.learners if learners is None else learners[self.turn]
        decision = tuner.update(MeasurementWindow(samples, seconds, count))
        decisions = [decision if device == self.turn else NO_CHANGE for device in range(len(self.tuners))]
        if tuner.settled:
            self._pass_on()
        return decisions

    def failed(self, device: int, learners: int) -> None:
        """Record that this many learners of a device ran out of memory, and that it now has one fewer."""
        self.tuners[device].failed(learners)
        if device != self.turn:
            self.tuners[self.turn].restart()

    def _pass_on(self) -> None:
        """Pass the turn to the next device that needs one; if none does, keep it until something was tried."""
        state = self._state()
        if state[:2] != self._known[:2]:
            self._others = set(range(len(self.tuners))) - {self.turn}
        tried = state != self._known
        self._known = state
        if len(self.tuners) == 1 or (not self._others and not tried):
            return
        following = [(self.turn + ahead) % len(self.tuners) for ahead in range(1, len(self.tuners) + 1)]
        self.turn = next((device for device in following if device in self._others), following[0])
        if self.turn in self._others:  # its measurements were with other learners on the others
            self.tuners[self.turn].restart()
        self._others.discard(self.turn)
        self._known = self._state()

    def _state(self) -> tuple[int, int, int]:
        """Return learners, drifts and number of changes of the device whose turn it is."""
        tuner = self.tuners[self.turn]
        return tuner.learners, tuner.drifts, len(tuner.changes)
