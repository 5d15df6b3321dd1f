"""Who waits for whom around a call: the caller's stream, the synchronisation stream and those of the learners."""

from collections.abc import Sequence

from bow.devices import Event, Stream, StreamDevice
from bow.engines.cuda.step import SgdStep


class StreamOrder:
    """Orders rounds with what the caller issues before and behind them; only `abandon` waits for the device."""

    def __init__(self, device: StreamDevice) -> None:
        self.sync_stream = device.stream("synchronisation", high_priority=True)
        self.issued = device.event("the caller has issued its work")
        self.gate: Event | None = None  # what learners wait for before they learn; None: their own streams order it
        self._device = device
        self._advanced = device.event("learners and central model have been moved")

    def fork(self, stepping: SgdStep | None) -> None:
        """Have everything wait for what the caller has issued: batches, and whatever was done to the learners."""
        self._device.caller().wait(self._advanced)  # the last call may have been made from another stream
        if stepping is not None:
            stepping.begin()
        self._device.caller().record(self.issued)
        self.sync_stream.wait(self.issued)
        self.gate = self.issued

    def join(self) -> None:
        """Have what the caller issues next wait for the rounds; the synchronisation stream has waited for all else."""
        self.sync_stream.record(self._advanced)
        self._device.caller().wait(self._advanced)

    def move(self) -> None:
        """Learners were moved on the synchronisation stream: they wait for it before they learn again."""
        self.sync_stream.record(self._advanced)
        self.gate = self._advanced

    def abandon(self, streams: Sequence[Stream]) -> None:
        """Wait for all that was issued of a call that ends in the middle: what it used is used again."""
        for stream in streams:
            over = self._device.event(f"{stream.name} was abandoned")
            stream.record(over)
            self.sync_stream.wait(over)
        self.sync_stream.record(self._advanced)
        self._advanced.synchronize()
