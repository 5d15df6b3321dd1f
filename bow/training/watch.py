"""Tuning while training: add and remove learners by the throughput of measurement windows."""

from collections.abc import Sequence

from bow.errors import DeviceMemoryError, SettingError, reason
from bow.training.replicas import Replicas
from bow.training.signals import Signals
from bow.tuner import DeviceTuners, OnlineTuner, Tuner


class Watch:
    """Passes measurement windows to the tuners of all devices and applies their decisions, alike in all processes."""

    def __init__(self, replicas: Replicas, tuner: Tuner, most: Sequence[int], signals: Signals | None = None) -> None:
        self._replicas = replicas
        self._window_s = tuner.window_s
        self._signals = signals
        self._learners = list(replicas.group.by_device)
        self._tuners = DeviceTuners(
            [
                OnlineTuner(count, limit, threshold=tuner.threshold, efficiency=signals, calibrated=True)
                for count, limit in zip(self._learners, most, strict=True)
            ]
        )
        self._began: tuple[float, int] | None = None

    def round_ended(self, seconds: float, samples: int) -> str | None:
        """Process rounds that have ended; return a message if learners changed. All processes call this together."""
        if self._signals is not None:
            self._signals.observe(self._replicas)
        learners = list(self._replicas.group.by_device)
        if self._began is None or learners != self._learners:
            self._began, self._learners = (seconds, samples), learners
            return None
        since, before = self._began
        if seconds - since < self._window_s:
            return None
        self._began = seconds, samples
        for device, decision in enumerate(self._tuners.update(samples - before, seconds - since, learners)):
            if decision.step:
                self._began = None  # no window includes the change itself
                return self._change(device, decision.step, decision.why)
        return None

    def ran_out_of_memory(self, error: DeviceMemoryError) -> str:
        """Remove a learner after a round ran out of memory; this many are never tried again."""
        learners = self._replicas.learners
        self._replicas.resize(learners - 1)
        self._tuners.failed(0, learners)
        self._began = None
        return f"learners: {learners} to {learners - 1} ({reason(error)})"

    def _change(self, device: int, step: int, why: str) -> str:
        replicas = self._replicas
        before = replicas.group.by_device[device]
        try:
            replicas.resize(replicas.learners + (step if device == replicas.world.rank else 0))
        except (DeviceMemoryError, SettingError) as error:
            if step < 0:
                raise
            why = reason(error)  # the others see from the numbers that it failed
        after, where = replicas.group.by_device[device], "" if replicas.world.is_one else f" on device {device}"
        if after == before:
            self._tuners.failed(device, before + step)
            return f"no further learner{where} ({why})"
        return f"learners{where}: {before} to {after} ({why})"
