"""What engines on devices with streams differ in."""

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar

from bow.devices import Stream
from bow.engines.batches import FlatBatch
from bow.engines.cuda.context import DeviceContext
from bow.engines.cuda.feed import DeviceBatches
from bow.engines.cuda.learner import StreamLearner
from bow.schedule.scheduler import Learn, Run, TaskScheduler


class DeviceRunner(abc.ABC):
    """Issues the learning tasks of one device's rounds."""

    name: ClassVar[str]
    replays: ClassVar[bool] = True
    """Whether what is captured runs without Python, so that it has to be held against the step now and then."""

    def __init__(self, context: DeviceContext) -> None:
        self.context = context
        self.device = context.device

    @property
    def description(self) -> str:
        """Its name, and whether learning tasks cannot be captured."""
        return self.name if self.context.captures.refused is None else f"{self.name} (not captured)"

    @property
    def draws_as_eager(self) -> bool:
        """Whether a learner's captured task draws the random numbers that it draws uncaptured."""
        return False

    @abc.abstractmethod
    def capture(self, batch: FlatBatch) -> None:
        """Capture what there is to capture for batches of this shape; the host may wait."""

    @abc.abstractmethod
    def issue(self, slot: int, batches: DeviceBatches, due: bool) -> None:
        """Issue the learning tasks of a round, and all the rest of it where `context.stepping` steps and averages.

        Afterwards the synchronisation stream waits for all of it, and the results are in their slot.
        """

    def streams(self) -> list[Stream]:
        """The streams that the synchronisation stream waits for."""
        return [self.context.feed.stream, *(learner.stream for learner in self.context.learners)]

    def followed(self) -> None:  # noqa: B027 - learners' own streams order it
        """The central model was made of the only learner's weights, which must not be written before that."""

    def bind(self) -> None:
        """Follow the learners that there are now, and forget what was captured."""
        self.context.bind()

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """End threads; the next round starts them again."""


class AheadDeviceRunner(DeviceRunner):
    """A runner whose learners can take batches as they come, without a barrier behind every round."""

    @abc.abstractmethod
    def run_tasks(self, scheduler: TaskScheduler, runs: Sequence[Run], issue: Callable[[Learn], StreamLearner]) -> None:
        """Issue the tasks of a scheduler, each when it is given out, and tell it of those that the device has ended."""
