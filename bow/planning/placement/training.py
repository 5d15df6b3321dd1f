"""Trains a policy: draw placements, evaluate them, learn."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pickle
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bow.errors import CheckpointError, ScheduleError, SettingError, disk_reason, reason
from bow.planning.placement.policy import Operations, PlacementPolicy, PolicySettings
from bow.planning.placement.reinforce import Baseline, Elites, LearningSettings, Updater, policy_loss, sanitised
from bow.seeds import derive_seed

Placement: TypeAlias = tuple[int, ...]
"""By operation: its device."""

Evaluate: TypeAlias = Callable[[list[Placement]], Sequence[float | None]]
"""Seconds of a step with each placement; None: it does not fit or fails."""


@dataclass(frozen=True)
class Batch:
    """What a controller drew for one update.

    Attributes:
        placements: that were drawn.
        times: by placement, in seconds; None: it does not fit or failed.
        entropy: of the policy, in nats for each operation, averaged.
    """

    placements: tuple[Placement, ...]
    times: tuple[float | None, ...]
    entropy: float

    @property
    def num_failed(self) -> int:
        """How many placements do not fit or failed."""
        return sum(time is None for time in self.times)


class Controller:
    """Draws placements from a policy and estimates the gradient; baseline and elites are its own.

    Args:
        policy: to draw from.
        evaluate: seconds of a step with each placement.
        settings: how to learn.
        seed: of the placements that are drawn.
        number: of this controller among those that train together.

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, sections 3.1 and 3.4.
    """

    def __init__(
        self, policy: PlacementPolicy, evaluate: Evaluate, settings: LearningSettings, *, seed: int = 0, number: int = 0
    ) -> None:
        self.policy = policy
        self._evaluate, self._settings = evaluate, settings
        self._generator = torch.Generator().manual_seed(derive_seed(seed, number))
        self._baseline = Baseline(settings.baseline_decay, settings.failing_s, settings.is_scaled)
        self._elites = Elites(settings.elites)

    def step(self, update: int) -> Batch:
        """Draw and evaluate placements, and set the gradients of the policy's parameters."""
        settings = self._settings
        drawn, _ = self.policy.sample(
            settings.samples,
            self._generator,
            noise=settings.noise_at(update),
            explorers=settings.explorers,
            random_choices=settings.random_choices,
        )
        placements = [tuple(row) for row in drawn.tolist()]
        times = sanitised(self._evaluate(placements))
        if len(times) != len(placements):
            raise SettingError(f"{len(placements)} placements got {len(times)} times; evaluate must give each one")
        own = settings.samples - settings.explorers
        advantages = self._baseline.advantages(times[:own], mask_failures=update >= settings.mask_failures_after)
        self._elites.add(placements, times)
        learnt = torch.cat([drawn[:own], drawn.new_tensor(self._elites.placements).view(-1, drawn.shape[1])])
        likelihood = self.policy.log_probability(learnt)
        self.policy.zero_grad()
        nats = likelihood.entropies[:own].mean().item()
        loss = policy_loss(advantages, *likelihood, settings.entropy_at(update, nats))
        loss.backward()  # type: ignore[no-untyped-call]
        return Batch(tuple(placements), tuple(times), nats / len(self.policy.operations))

    def state(self) -> dict[str, Any]:
        """What it takes to go on from here: plain values and tensors."""
        return {
            "generator": self._generator.get_state(),
            "baseline": asdict(self._baseline),
            "elites": self._elites.found,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from where another one was."""
        generator: Tensor = state["generator"]
        self._generator.set_state(generator)
        self._baseline = Baseline(**state["baseline"])
        found = tuple((seconds, tuple(placement)) for seconds, placement in state["elites"])  # JSON has lists
        self._elites = Elites(self._settings.elites, found)


@dataclass(frozen=True)
class Found:
    """A placement that was better than all before.

    Attributes:
        placement: by operation: its device.
        time_s: of a step, in seconds.
        sample: the manieth placement it was, from 1.
    """

    placement: Placement
    time_s: float
    sample: int


@dataclass(frozen=True)
class Progress:
    """How a training stands.

    Attributes:
        updates: so many there were.
        samples: so many placements were drawn.
        failed: so many of them do not fit or failed.
        skipped: so many updates were left out, because a gradient was not finite.
        best: the best placement so far; None: none has fitted yet.
        batch: the newest placements.
        seconds: since the training began, or went on.
    """

    updates: int
    samples: int
    failed: int
    skipped: int
    best: Found | None
    batch: Batch
    seconds: float


Watch: TypeAlias = Callable[[Progress], bool | None]
"""Is told after each update how it goes; False ends the training."""


@dataclass
class Findings:
    """All that was drawn, counted, and the best of it.

    Attributes:
        samples: so many placements were drawn.
        failed: so many of them do not fit or failed.
        bests: each placement that was better than all before; the last one is the best.
    """

    samples: int = 0
    failed: int = 0
    bests: tuple[Found, ...] = ()

    @property
    def best(self) -> Found | None:
        """The best placement so far."""
        return self.bests[-1] if self.bests else None

    def add(self, batch: Batch) -> None:
        """Count what was drawn."""
        for placement, time_s in zip(batch.placements, batch.times, strict=True):
            self.samples += 1
            self.failed += time_s is None
            if time_s is not None and (self.best is None or time_s < self.best.time_s):
                self.bests = (*self.bests, Found(placement, time_s, self.samples))


@dataclass(frozen=True)
class LearnedPlacement:
    """What a training has found.

    Attributes:
        best: the best placement that was drawn.
        greedy: the one that the trained policy decodes greedily.
        greedy_s: of a step with it, in seconds; None: it does not fit.
        policy: that was trained.
        findings: what was drawn, and each placement that was better than all before.
        updates: so many there were.
        skipped: so many of them were left out, because a gradient was not finite.
        seconds: that it took.
    """

    best: Found
    greedy: Placement
    greedy_s: float | None
    policy: PlacementPolicy
    findings: Findings
    updates: int
    skipped: int
    seconds: float


FORMAT = "bow placement policy"
VERSION = 1


class PolicyCheckpoint:
    """The file of one training; it is there whole or not at all.

    Args:
        path: of the file; its folder is created.
        policy: that is trained.
        settings: with which it learns.
        seed: of the training.
    """

    def __init__(self, path: Path, policy: PlacementPolicy, settings: LearningSettings, seed: int) -> None:
        self._path, self._policy = path, policy
        described = repr((policy.operations, policy.settings, settings, seed))
        self._training = hashlib.sha256(described.encode()).hexdigest()[:16]

    def save(self, updater: Updater, findings: Findings, controllers: dict[int, dict[str, Any]]) -> None:
        """Write the file anew, under a temporary name first."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "training": self._training,
            "policy": self._policy.state_dict(),
            "updater": updater.state(),
            "findings": asdict(findings),
            "controllers": controllers,
        }
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())  # a name must not point to what is not yet on the disk
            part.replace(self._path)
        except (OSError, RuntimeError) as error:  # torch's writer raises the latter where the disk is full
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            why = disk_reason(error)
            raise CheckpointError(f"{self._path} cannot be written ({why}); free space or use another file") from error

    def load(self, updater: Updater, findings: Findings) -> dict[int, dict[str, Any]]:
        """Go on from the file, where it is there."""
        if not self._path.exists():
            return {}
        content = self._read()
        if content.get("training") != self._training:
            raise CheckpointError(
                f"{self._path} is of a training with other operations, settings or seed; give the same or another file"
            )
        self._policy.load_state_dict(content["policy"])
        updater.load(content["updater"])
        kept = content["findings"]
        findings.samples, findings.failed = kept["samples"], kept["failed"]
        findings.bests = tuple(Found(**best) for best in kept["bests"])
        controllers: dict[int, dict[str, Any]] = content["controllers"]
        return controllers

    def _read(self) -> dict[str, Any]:
        try:
            with zipfile.ZipFile(self._path) as parts:
                if (part := parts.testzip()) is not None:  # torch does not look at checksums
                    raise ValueError(f"the checksum of {part} is wrong")
            content = torch.load(self._path, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, ValueError) as error:
            foreign = isinstance(error, pickle.UnpicklingError)  # torch would advise to trust the file
            why = "it holds other things than tensors and plain values" if foreign else reason(error)
            raise CheckpointError(f"{self._path} is damaged ({why}); delete it to begin anew") from error
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise CheckpointError(f"{self._path} is no checkpoint of a placement policy; give another file")
        return content


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


def train_policy(
    operations: Operations,
    evaluate: Evaluate,
    *,
    updates: int,
    settings: LearningSettings | None = None,
    sizes: PolicySettings | None = None,
    seed: int = 0,
    budget_s: float | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 50,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> LearnedPlacement:
    """Learn to place operations on devices from nothing but the time of a step.

    Ctrl-C, or a watch that returns False, ends the training, and what was best so far is returned. The same seed gives
    the same placements, also where a training was interrupted and goes on from its checkpoint, if `evaluate` gives the
    same times and torch the same number of threads.

    Example:
        >>> chain = Operations(("linear",) * 3, (((8, 4),),) * 3, ((0, 1), (1, 2)), num_devices=2)
        >>> def evaluate(placements):
        ...     return [1.0 + sum(placement) for placement in placements]
        >>> small = PolicySettings(hidden=8, attention=4)
        >>> train_policy(chain, evaluate, updates=10, sizes=small).best.placement
        (0, 0, 0)

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.
    """
    state = TrainingState(
        operations,
        settings,
        sizes,
        seed,
        updates=updates,
        budget_s=budget_s,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        clock=clock,
    )
    controller = Controller(state.policy, evaluate, state.settings, seed=seed)
    if 0 in state.controllers:
        controller.load(state.controllers[0])
    with state.kept():
        while not state.is_over:
            batch = controller.step(state.updater.updates)
            progress = state.learn(batch, 0, controller.state())
            if watch is not None and watch(progress) is False:
                break
    return state.result(evaluate)
