"""The tuner while training goes on: learners come and go by what windows of training show."""

from bow.errors import DeviceMemoryError, SettingError, reason
from bow.training.replicas import Replicas
from bow.training.signals import Signals
from bow.tuner import DeviceTuners, MeasurementWindow, OnlineTuner, Tuner


class Watch:
    """Tells an `OnlineTuner` of windows of training, and does what it says.

    Trials have found the number of learners that the training begins with, now or for an earlier training, so that its
    neighbours are not tried at once.
    """

    def __init__(self, replicas: Replicas, tuner: Tuner, most: int, signals: Signals | None) -> None:
        self._replicas = replicas
        self._window_s = tuner.window_s
        self._signals = signals
        self._tuner = OnlineTuner(
            replicas.learners, most, threshold=tuner.threshold, efficiency=signals, calibrated=True
        )
        self._began: tuple[float, int] | None = None
        self._learners = replicas.learners

    def round_ended(self, seconds: float, samples: int) -> str | None:
        """Hear of rounds that have ended."""
        replicas = self._replicas
        if self._signals is not None:
            self._signals.observe(replicas)
        if self._began is None or replicas.learners != self._learners:
            self._began, self._learners = (seconds, samples), replicas.learners
            return None
        since, before = self._began
        if seconds - since < self._window_s:
            return None
        self._began = seconds, samples
        decision = self._tuner.update(MeasurementWindow(samples - before, seconds - since, replicas.learners))
        if not decision.step:
            return None
        self._began = None  # what changing takes belongs to no window
        return self._change(decision.step, decision.why)

    def ran_out_of_memory(self, error: DeviceMemoryError) -> str:
        """Take a learner away behind a round that found no memory for all; that many are never tried again."""
        learners = self._replicas.learners
        self._replicas.resize(learners - 1)
        self._tuner.failed(learners)
        self._began = None
        return _text(learners, learners - 1, reason(error))

    def _change(self, step: int, why: str) -> str:
        replicas = self._replicas
        before = replicas.learners
        try:
            replicas.resize(before + step)
        except (DeviceMemoryError, SettingError) as error:
            if step < 0:
                raise
            self._tuner.failed(before + step)
            return f"no further learner ({reason(error)})"
        return _text(before, replicas.learners, why)


def _text(before: int, after: int, why: str) -> str:
    return f"learners: {before} to {after} ({why})"


class WatchDevices:
    """Tells `DeviceTuners` of windows of training; every process hears the same and comes to the same decisions."""

    def __init__(self, replicas: Replicas, tuner: Tuner, most: list[int]) -> None:
        self._replicas = replicas
        self._window_s = tuner.window_s
        begun = zip(replicas.group.by_device, most, strict=True)
        self._devices = DeviceTuners(
            [
                OnlineTuner(count, max(count, limit), threshold=tuner.threshold, calibrated=True)
                for count, limit in begun
            ]
        )
        self._began: tuple[float, int] | None = None

    def heard(self, seconds: float, samples: int) -> str | None:
        """Hear of rounds that have ended, which all processes do behind the same one."""
        if self._began is None:
            self._began = seconds, samples
            return None
        since, before = self._began
        if seconds - since < self._window_s:
            return None
        self._began = seconds, samples
        decisions = self._devices.update(float(samples - before), seconds - since)
        device = next((index for index, decision in enumerate(decisions) if decision.step), None)
        if device is None:
            return None
        self._began = None  # what changing takes belongs to no window
        return self._change(device, decisions[device].step, decisions[device].why)

    def _change(self, device: int, step: int, why: str) -> str:
        replicas = self._replicas
        before = replicas.group.by_device[device]
        own = step if device == replicas.world.rank else 0
        try:
            replicas.resize(replicas.learners + own)
        except (DeviceMemoryError, SettingError) as error:
            why = reason(error)  # the others see by the numbers that nothing has come of it
        after = replicas.group.by_device[device]
        if after == before:
            self._devices.failed(device, before + step)
            return f"no further learner on device {device} ({why})"
        return f"learners of device {device}: {before} to {after} ({why})"
