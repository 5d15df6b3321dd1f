"""When a training writes checkpoints, and what is in them."""

import signal
import time
from collections.abc import Callable
from typing import Any

from bow.errors import BowError, DeviceMemoryError
from bow.training.checkpoint import newest_round, save_checkpoint
from bow.training.context import RunContext
from bow.training.replicas import Replicas
from bow.training.run_records import RunRecords

SHARE = 0.01
"""Automatic checkpoints take at most this part of the time."""

LEAST_S = 60.0
"""Seconds between two of them, at least; a training that is shorter writes none."""

BYTES_PER_S = 200e6
"""What the first checkpoint is expected to be written at; those behind it are timed."""


class CheckpointTimer:
    """Says when a checkpoint is due where nobody has said how often.

    Args:
        num_bytes: about as many as a checkpoint has.
        now_s: on the clock that the methods are told.

    Example:
        >>> timer = CheckpointTimer(1000, now_s=0.0)
        >>> timer.is_due(59.0), timer.is_due(61.0)
        (False, True)
        >>> timer.wrote(61.0, 64.0)
        >>> timer.is_due(360.0), timer.is_due(365.0)
        (False, True)
    """

    def __init__(self, num_bytes: float, now_s: float) -> None:
        self._due_s = now_s + max(LEAST_S, num_bytes / BYTES_PER_S / SHARE)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time."""
        return now_s >= self._due_s

    def wrote(self, began_s: float, ended_s: float) -> None:
        """A checkpoint was written, or could not be."""
        self._due_s = ended_s + max(LEAST_S, (ended_s - began_s) / SHARE)


class RunCheckpoints:
    """Writes the checkpoints of a training."""

    def __init__(self, context: RunContext, records: RunRecords, state: Callable[[], dict[str, Any] | None]) -> None:
        self._context = context
        self._position = context.position
        self._records = records
        self._state = state  # of the whole training; all devices ask for it, and rank 0 gets it
        copies = context.replicas.group.num_all + 1  # and of each, what an optimizer such as Adam remembers
        self._timer = CheckpointTimer(3 * 4 * context.replicas.num_parameters * copies, time.perf_counter())
        self._dealt_from: dict[str, Any] = {}

    @property
    def is_due(self) -> bool:
        """Whether it is time for an automatic one."""
        return self._context.config.run.checkpoint_every == "auto" and self._timer.is_due(time.perf_counter())

    def after_round(self, before: int) -> None:
        """Write one where the rounds since the one before have passed a multiple of what the user asks for."""
        every = self._context.config.run.checkpoint_every
        if isinstance(every, int) and self._position.round // every > before // every:
            self.pause_and_write()

    def pause_and_write(self) -> None:
        """Write one while training time stands still."""
        self._position.meter.pause()
        self.write()
        self._position.meter.resume()

    def write(self, stream: dict[str, Any] | None = None) -> None:
        """Write one, of another position in the data where that is given."""
        began = time.perf_counter()
        if (state := self._state()) is not None:
            state["stream"] = stream or state["stream"]
            folder, index = self._context.directory.checkpoints, self._position.round
            self._records.attempt(lambda: save_checkpoint(folder, index, state), "checkpoint", "the training goes on")
        self._timer.wrote(began, time.perf_counter())

    def interrupted(self, number: int) -> None:
        """Keep what was trained of a training that is asked to end from outside."""
        self.write()
        self._records.event("interrupted", f"{signal.Signals(number).name}: the training ends; {self.way_on}")

    def deal_begins(self) -> None:
        """Remember where the data are before the batches of the next rounds are taken."""
        self._dealt_from = self._context.stream.state_dict()

    def keep_what_was(self) -> None:
        """Keep what was trained before rounds that have failed and left nothing behind."""
        asked_for = self._context.config.run.checkpoint_every is not None
        has_run = 0 < self._position.round == self._context.replicas.rounds
        if asked_for and self._context.world.is_one and has_run:
            self.write(self._dealt_from)

    def rounds_failed(self, error: Exception) -> None:
        """Keep what was trained, if a round that failed by this error has left the learners as they were.

        A user's step that raises has moved the buffers of `eager`; one that is issued, or dealt ahead, still more.
        """
        replicas = self._context.replicas
        if isinstance(error, BowError) or not isinstance(replicas, Replicas):
            leaves_nothing = isinstance(error, DeviceMemoryError)
        else:
            moves = replicas.engine != "graph" and any(True for _ in replicas.central.buffers())
            is_fixed = replicas.loop.settings.dispatch == "fixed"
            in_turn = replicas.engine in ("eager", "graph") and replicas.streams is None and is_fixed
            is_plain = type(replicas.optimizer).__module__.startswith("torch.optim.")
            leaves_nothing = in_turn and not moves and is_plain
        if leaves_nothing:
            self.keep_what_was()

    @property
    def way_on(self) -> str:
        """How to go on with a training that has not ended, in a sentence."""
        directory = self._context.directory
        kept, path = newest_round(directory.checkpoints), str(directory.path)
        if kept is None:
            return "there is no checkpoint to go on from"
        return (
            f"there is a checkpoint of round {kept}; go on with bow train ... run.path={path} run.resume=auto, "
            f"in Python with bow.train(..., run=bow.Run({path!r}, resume='auto'))"
        )
