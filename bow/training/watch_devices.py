"""The tuner while several devices train: each has learners of its own, and all decide alike."""

from bow.errors import DeviceMemoryError, SettingError, reason
from bow.training.replicas import Replicas
from bow.tuner import DeviceTuners, OnlineTuner, Tuner


class WatchDevices:
    """Tells `DeviceTuners` of windows of training; every process hears the same and comes to the same decisions.

    Args:
        replicas: the learners of this device.
        tuner: the tuner's settings.
        most: as many learners as each device may have.
    """

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
