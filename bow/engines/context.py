"""State shared by a round loop, its task runner and their collaborators."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from bow.devices import Kernels, StreamDevice
from bow.engines.averaging import ModelAveraging
from bow.engines.outcome import LearningConfig, ParallelSpeedup, RoundEvent
from bow.engines.restarts import Restarts
from bow.engines.task import Step
from bow.errors import warn_user
from bow.graph.outside import OutsideTensors
from bow.graph.refusal import set_state, state_of
from bow.replicas import Learner, LearnerGroup, is_expanded
from bow.schedule import Span
from bow.seeds import derive_seed
from bow.sync import Synchroniser


class RoundLog:
    """Progress of the training, events for the user, and recorded spans."""

    def __init__(self) -> None:
        self.round_index = 0
        self.events: list[RoundEvent] = []
        self.spans: list[Span] | None = None  # None: nothing is recorded
        self.parallel_speedup: ParallelSpeedup | None = None  # None: learners run in turn, or it was not measured

    def record_event(self, event: str, message: str, round_index: int | None = None) -> None:
        self.events.append(RoundEvent(self.round_index if round_index is None else round_index, event, message))

    def warn(self, message: str) -> None:
        self.record_event("engine changed", message)
        warn_user(message)

    def record(self, name: str, category: str, began_ns: int, place: str = "caller", **details: str | float) -> None:
        """Record a span from `began_ns` until now, while a timeline is recorded."""
        if self.spans is not None:
            details = {"round": self.round_index, **details}
            self.spans.append(Span(name, place, began_ns, time.perf_counter_ns(), category, details))


LARGE_BYTES = 2**20  # larger buffers, such as masks, are seldom written to and slow to copy in every round


class RoundSnapshot:
    """Snapshot of the state that learning tasks in Python change, to undo a round, or one of its tasks."""

    def __init__(self, group: LearnerGroup, step: Step) -> None:
        self._group = group
        self._step = step
        self._generators: list[Any] | None = None  # owned by the step
        self._slots: list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]] = []
        self._kept: dict[int, Tensor] = {}  # values by the id of the buffer
        self._states: list[tuple[Any, Any]] = []
        self._versions: dict[int, tuple[Tensor, int]] = {}

    def take(self) -> None:
        """Take the snapshot; large buffers that the last round did not write to are not copied."""
        if self._generators is None:
            self._generators = OutsideTensors(self._step, self._group.learners[0].module).generators
        held = [slots for learner in self._group.learners for slots in learner.buffers if slots]
        self._slots = [(slots, slots.copy()) for slots in held]
        there = [buffer for slots in held for buffer in slots.values() if buffer is not None]
        large = [buffer for buffer in there if buffer.nbytes > LARGE_BYTES and not buffer.is_inference()]
        before, self._versions = self._versions, {id(buffer): (buffer, buffer._version) for buffer in large}
        still = {key for key, (_, version) in self._versions.items() if key in before and before[key][1] == version}
        kept = (buffer for buffer in there if id(buffer) not in still and not is_expanded(buffer))
        self._kept = {id(buffer): buffer.clone() for buffer in kept}
        self._states = [(each, state_of(each)) for each in self._generators]

    def restore(self) -> None:
        for learner in self._group.learners:
            self.restore_buffers(learner)
        for generator, state in self._states:
            set_state(generator, state)
        self.discard()

    def restore_buffers(self, learner: Learner) -> None:
        """Restore a learner's buffers, if there is a snapshot of this round."""
        own = set(map(id, learner.buffers))
        for slots, before in (each for each in self._slots if id(each[0]) in own):
            slots.clear()
            slots.update(before)
            for buffer in before.values():
                if id(buffer) in self._kept:
                    cast(Tensor, buffer).copy_(self._kept[id(buffer)])

    def discard(self) -> None:
        self._slots, self._kept, self._states = [], {}, []


class RoundContext:
    """The learners of a device, their synchroniser, and the collaborators of a round."""

    def __init__(
        self,
        group: LearnerGroup,
        sync: Synchroniser,
        settings: LearningConfig,
        device: StreamDevice | None = None,
        *,
        kernels: Kernels | None = None,  # average in one pass over the rows; None: the synchroniser itself averages
        where: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.group = group
        self.sync = sync
        self.settings = settings
        self.device = device
        self.log = RoundLog()
        self.averaging = ModelAveraging(group, sync, kernels)
        self.restarts = Restarts(group, sync, settings, self.log.record_event, where)
        self.snapshot = RoundSnapshot(group, settings.task_step)

    @property
    def round_index(self) -> int:
        return self.log.round_index

    @property
    def round_seed(self) -> int:
        """Seed of the numbers that this device's learners draw together in the coming round."""
        first = self.group.first
        return derive_seed(self.settings.seed, self.round_index, *([first] if first else []))

    def start_averaging(self) -> None:
        """Start to average from z, until now the only learner's weights, without momentum or a pending restart."""
        self.sync.start(self.group.matrix)
        self.restarts.drop.take()

    def task_seed(self, position: int, rounds_ahead: int = 0) -> int:
        return self.group.task_seed(self.settings.seed, self.round_index + rounds_ahead, position)
