"""A training under way: policy, optimizer, findings and the file that they are kept in."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bow.errors import ScheduleError, SettingError
from bow.planning.placement.controller import Batch, Evaluate
from bow.planning.placement.findings import Findings, Progress
from bow.planning.placement.learned import LearnedPlacement
from bow.planning.placement.learning_settings import LearningSettings
from bow.planning.placement.operations import Operations
from bow.planning.placement.policy import PlacementPolicy, PolicySettings
from bow.planning.placement.policy_checkpoint import PolicyCheckpoint
from bow.planning.placement.reinforce import sanitised
from bow.planning.placement.updating import Updater


class TrainingState:
    """What one process and several have in common.

    Args:
        operations: what is to be placed.
        settings: how to learn.
        sizes: of the policy.
        seed: of the training.
        updates: after which it ends.
        budget_s: seconds after which it ends in any case; None: none.
        checkpoint: the file to go on from, where it exists, and to write to; None: none.
        checkpoint_every: so many updates lie between writing it.
        clock: seconds.

    Raises:
        SettingError: a value outside its range.
        CheckpointError: the checkpoint is damaged or of another training.
    """

    def __init__(
        self,
        operations: Operations,
        settings: LearningSettings | None,
        sizes: PolicySettings | None,
        seed: int,
        *,
        updates: int,
        budget_s: float | None = None,
        checkpoint: Path | None = None,
        checkpoint_every: int = 50,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if updates < 1 or checkpoint_every < 1:
            raise SettingError(f"updates and checkpoint_every must be at least 1, got {updates} and {checkpoint_every}")
        if budget_s is not None and not (math.isfinite(budget_s) and budget_s > 0):
            raise SettingError(f"budget_s must be finite and above 0, got {budget_s}")
        self.settings = settings or LearningSettings().scaled(updates)
        self.policy = PlacementPolicy(operations, sizes, seed=seed)
        self.updater = Updater(self.policy, self.settings)
        self.findings = Findings()
        self.controllers: dict[int, dict[str, Any]] = {}
        """By number: the states of controllers after the newest update."""
        self._updates, self._budget_s, self._every = updates, budget_s, checkpoint_every
        self._clock, self._start = clock, clock()
        self._is_whole = True
        self._file = None if checkpoint is None else PolicyCheckpoint(checkpoint, self.policy, self.settings, seed)
        if self._file is not None:
            self.controllers = self._file.load(self.updater, self.findings)

    @property
    def seconds(self) -> float:
        """Since the training began, or went on."""
        return self._clock() - self._start

    @property
    def is_over(self) -> bool:
        """Whether updates or seconds are spent."""
        is_late = self._budget_s is not None and self.seconds >= self._budget_s
        return is_late or self.updater.updates >= self._updates

    def learn(self, batch: Batch, number: int, controller: dict[str, Any]) -> Progress:
        """Change the policy by its gradients."""
        self._is_whole = False  # an interrupt in between leaves what must not be written
        self.findings.add(batch)
        self.updater.update()
        self.controllers[number] = controller
        self._is_whole = True
        if self.updater.updates % self._every == 0:
            self.save()
        found, updater = self.findings, self.updater
        return Progress(updater.updates, found.samples, found.failed, updater.skipped, found.best, batch, self.seconds)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what is found whatever happens: in the file, where there is one, and in an error that ends the training.

        Ctrl-C is no error: it ends the training.
        """
        with self._noted():
            try:
                yield
            except KeyboardInterrupt:
                pass
            finally:
                self.save()

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """An error tells of the best placement so far."""
        try:
            yield
        except Exception as error:
            if (best := self.findings.best) is not None:
                error.add_note(f"the best placement until then takes {best.time_s:.6g} s: {best.placement}")
            raise

    def save(self) -> None:
        """Write the checkpoint, where there is one and no update was interrupted halfway."""
        if self._file is not None and self._is_whole:
            self._file.save(self.updater, self.findings, self.controllers)

    def result(self, evaluate: Evaluate) -> LearnedPlacement:
        """What was found."""
        best = self.findings.best
        if best is None:
            raise ScheduleError(
                f"none of {self.findings.samples} placements that were drawn fits; train longer, or with more memory"
            )
        greedy = self.policy.greedy()
        greedy_s = None
        with self._noted(), contextlib.suppress(KeyboardInterrupt):
            (greedy_s,) = sanitised(evaluate([greedy]))
        updater = self.updater
        return LearnedPlacement(
            best, greedy, greedy_s, self.policy, self.findings, updater.updates, updater.skipped, self.seconds
        )
