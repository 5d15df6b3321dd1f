"""State shared by the round loop of a device with streams, its runner and their collaborators."""

from collections.abc import Sequence
from typing import Any, cast

import torch

from bow.devices import Event, Stream, StreamDevice, kernels_for
from bow.engines.captured import CaptureCache
from bow.engines.context import RoundContext
from bow.engines.cuda.learner import StreamLearner
from bow.engines.cuda.step import RowsStep, SgdStep
from bow.engines.cuda.transfers import Feed, Results
from bow.engines.eager import LearningTasks
from bow.engines.live_check import LiveCheck
from bow.engines.offload import OffloadedTasks
from bow.engines.outcome import LearningConfig
from bow.engines.step_state import fits
from bow.replicas import LearnerGroup
from bow.sync import SMA, Synchroniser


class StreamOrder:
    """Order rounds with the caller's work before and after them; only `abandon` waits for the device."""

    def __init__(self, device: StreamDevice) -> None:
        self.sync_stream = device.stream("synchronisation", high_priority=True)
        self.issued = device.event("the caller has issued its work")
        self.start_event: Event | None = None  # learners wait for it before learning; None: their streams order it
        self._device = device
        self._advanced = device.event("learners and central model have been moved")

    def fork(self, stepping: SgdStep | RowsStep | None) -> None:
        """Have everything wait for the caller's issued work: batches and changes to the learners."""
        self._device.caller().wait(self._advanced)  # the last call may have been made from another stream
        if stepping is not None:
            stepping.begin()
        self._device.caller().record(self.issued)
        self.sync_stream.wait(self.issued)
        self.start_event = self.issued

    def join(self) -> None:
        """Have the caller's next work wait for the rounds; the synchronisation stream has waited for all else."""
        self.sync_stream.record(self._advanced)
        self._device.caller().wait(self._advanced)

    def learners_moved(self) -> None:
        """Have learners wait for the synchronisation stream, which has changed them, before they learn again."""
        self.sync_stream.record(self._advanced)
        self.start_event = self._advanced

    def wait_for_caller(self) -> None:
        """Have the host and the synchronisation stream wait for the caller's issued work."""
        self._device.caller().record(self.issued)
        self.sync_stream.wait(self.issued)
        self.issued.synchronize()

    def abandon(self, streams: Sequence[Stream]) -> None:
        """Wait for everything issued by an interrupted call: its memory is reused."""
        for stream in streams:
            over = self._device.event(f"{stream.name} was abandoned")
            stream.record(over)
            self.sync_stream.wait(over)
        self.sync_stream.record(self._advanced)
        self._advanced.synchronize()


class StreamContext(RoundContext):
    """The learners of a device with streams, and their state there."""

    device: StreamDevice

    def __init__(self, group: LearnerGroup, sync: Synchroniser, settings: LearningConfig, device: StreamDevice) -> None:
        self.kernels = kernels_for(device.torch_device)
        self.order = StreamOrder(device)
        stream = self.order.sync_stream
        super().__init__(group, sync, settings, device, kernels=self.kernels, where=lambda: device.on(stream))
        self.offloaded = OffloadedTasks(group, device, at_once=True) if settings.engine.offload else None
        self.tasks = LearningTasks(group, settings, self.offloaded)
        self.feed = Feed(device)
        self.captures: CaptureCache[Any] = CaptureCache(settings, lambda: group.learners[0].module)
        self.live = LiveCheck(group, settings, self.captures)
        self.learners: list[StreamLearner] = []
        self.stepping: SgdStep | RowsStep | None = None  # steps on the device, if the optimizer fits
        self.is_whole = False  # whether a graph holds a round, with steps after all learners
        self._results: Results | None = None

    @property
    def has_results(self) -> bool:
        return self._results is not None

    @property
    def results(self) -> Results:
        assert self._results is not None
        return self._results

    @property
    def can_step(self) -> bool:
        return fits(self.group, self.sync, self.settings, rows=self.is_whole)

    def make_results(self, metrics: Sequence[str]) -> None:
        dtype = torch.promote_types(self.group.matrix.z.dtype, torch.float32)
        self._results = Results(self.device, len(self.group), metrics, dtype)

    def bind(self) -> None:
        self.tasks.resized()
        self.live.resized()
        for learner in self.learners:
            learner.forget()
        self.captures.clear()
        by_row = fits(self.group, self.sync, self.settings)
        self.learners = [
            StreamLearner(self.device, self.kernels, self.group, self.tasks, index, by_row)
            for index in range(len(self.group))
        ]
        self.stepping = None
        if self.can_step:
            sync = cast(SMA, self.sync)
            self.stepping = (
                SgdStep(self.device, self.group, sync, self.kernels)
                if by_row
                else RowsStep(self.device, self.group, sync, self.kernels, self.settings.clip_norm)
            )
        if self._results is not None:
            self.make_results(self._results.metrics)

    def fork(self) -> None:
        self.order.fork(self.stepping)
