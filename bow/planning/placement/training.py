"""Trains a policy: draw placements, evaluate them, learn."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bow.errors import ScheduleError, SettingError
from bow.planning.placement.policy import Operations, PlacementPolicy, PolicySettings
from bow.planning.placement.reinforce import Baseline, Elites, LearningSettings, Updater, policy_loss, sanitised
from bow.seeds import derive_seed

Placement: TypeAlias = tuple[int, ...]  # By operation: its device

Evaluate: TypeAlias = Callable[[list[Placement]], Sequence[float | None]]
"""Seconds of a step with each placement; None: it does not fit or fails."""


@dataclass(frozen=True)
class SampledPlacements:
    """What a controller drew for one update."""

    placements: tuple[Placement, ...]  # that were drawn
    times: tuple[float | None, ...]  # by placement, in seconds; None: it does not fit or failed
    entropy: float  # of the policy, in nats for each operation, averaged

    @property
    def num_failed(self) -> int:
        """How many placements do not fit or failed."""
        return sum(time is None for time in self.times)


class Controller:
    """Draws placements from a policy and estimates the gradient; baseline and elites are its own."""

    def __init__(
        self, policy: PlacementPolicy, evaluate: Evaluate, settings: LearningSettings, *, seed: int = 0, number: int = 0
    ) -> None:
        self.policy = policy
        self._evaluate, self._settings = evaluate, settings
        self._generator = torch.Generator().manual_seed(derive_seed(seed, number))
        self._baseline = Baseline(settings.baseline_decay, settings.failing_s, settings.is_scaled)
        self._elites = Elites(settings.elites)

    def step(self, update: int) -> SampledPlacements:
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
        return SampledPlacements(tuple(placements), tuple(times), nats / len(self.policy.operations))

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
        self._elites = Elites(self._settings.elites, state["elites"])


@dataclass(frozen=True)
class BestPlacement:
    """A placement that was better than all before."""

    placement: Placement  # by operation: its device
    time_s: float  # of a step, in seconds
    sample: int  # its number among all that were drawn, from 1


@dataclass(frozen=True)
class PolicyProgress:
    """How a training stands."""

    updates: int  # so many there were
    samples: int  # so many placements were drawn
    failed: int  # so many of them do not fit or failed
    skipped: int  # so many updates were left out, because a gradient was not finite
    best: BestPlacement | None  # the best placement so far; None: none has fitted yet
    batch: SampledPlacements  # the newest placements
    seconds: float  # since the training began, or went on


Watch: TypeAlias = Callable[[PolicyProgress], bool | None]
"""Called after each update; False ends the training."""


@dataclass
class PlacementHistory:
    """All that was drawn, counted, and the best of it."""

    samples: int = 0  # so many placements were drawn
    failed: int = 0  # so many of them do not fit or failed
    bests: tuple[BestPlacement, ...] = ()  # each placement that was better than all before; the last one is the best

    @property
    def best(self) -> BestPlacement | None:
        """The best placement so far."""
        return self.bests[-1] if self.bests else None

    def add(self, batch: SampledPlacements) -> None:
        """Count what was drawn."""
        for placement, time_s in zip(batch.placements, batch.times, strict=True):
            self.samples += 1
            self.failed += time_s is None
            if time_s is not None and (self.best is None or time_s < self.best.time_s):
                self.bests = (*self.bests, BestPlacement(placement, time_s, self.samples))


@dataclass(frozen=True)
class LearnedPlacement:
    """What a training has found."""

    best: BestPlacement  # the best placement that was drawn
    greedy: Placement  # the one that the trained policy decodes greedily
    greedy_s: float | None  # of a step with it, in seconds; None: it does not fit
    policy: PlacementPolicy  # that was trained
    history: PlacementHistory  # what was drawn, and each placement that was better than all before
    updates: int  # so many there were
    skipped: int  # so many of them were left out, because a gradient was not finite
    seconds: float  # that it took


class TrainingState:
    """A training under way, in one process or several: policy, optimizer, and what was found."""

    def __init__(
        self,
        operations: Operations,
        settings: LearningSettings | None,
        sizes: PolicySettings | None,
        seed: int,
        *,
        updates: int,
        budget_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        if updates < 1:
            raise SettingError(f"updates must be at least 1, got {updates}")
        if budget_s is not None and not (math.isfinite(budget_s) and budget_s > 0):
            raise SettingError(f"budget_s must be finite and above 0, got {budget_s}")
        self.settings = settings or LearningSettings().scaled(updates)
        self.policy = PlacementPolicy(operations, sizes, seed=seed)
        self.updater = Updater(self.policy, self.settings)
        self.history = PlacementHistory()
        self._updates, self._budget_s = updates, budget_s
        self._clock, self._start = clock, clock()

    @property
    def seconds(self) -> float:
        """Since the training began."""
        return self._clock() - self._start

    @property
    def is_over(self) -> bool:
        """Whether updates or seconds are spent."""
        is_late = self._budget_s is not None and self.seconds >= self._budget_s
        return is_late or self.updater.updates >= self._updates

    def learn(self, batch: SampledPlacements) -> PolicyProgress:
        """Change the policy by its gradients."""
        self.history.add(batch)
        self.updater.update()
        found, updater = self.history, self.updater
        return PolicyProgress(
            updater.updates, found.samples, found.failed, updater.skipped, found.best, batch, self.seconds
        )

    @contextlib.contextmanager
    def with_best_noted(self) -> Iterator[None]:
        """Ctrl-C ends the training; an error that ends it tells of the best placement so far."""
        try:
            yield
        except KeyboardInterrupt:
            pass
        except Exception as error:
            if (best := self.history.best) is not None:
                error.add_note(f"the best placement until then takes {best.time_s:.6g} s: {best.placement}")
            raise

    def result(self, evaluate: Evaluate) -> LearnedPlacement:
        """What was found."""
        best = self.history.best
        if best is None:
            raise ScheduleError(
                f"none of {self.history.samples} placements that were drawn fits; train longer, or with more memory"
            )
        greedy = self.policy.greedy()
        greedy_s = None
        with self.with_best_noted():
            (greedy_s,) = sanitised(evaluate([greedy]))
        updater = self.updater
        return LearnedPlacement(
            best, greedy, greedy_s, self.policy, self.history, updater.updates, updater.skipped, self.seconds
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
    watch: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> LearnedPlacement:
    """Learn to place operations on devices from nothing but the time of a step.

    Ctrl-C, or a watch that returns False, ends the training, and what was best so far is returned. The same seed gives
    the same placements, if `evaluate` gives the same times and torch the same number of threads.

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.
    """
    state = TrainingState(operations, settings, sizes, seed, updates=updates, budget_s=budget_s, clock=clock)
    controller = Controller(state.policy, evaluate, state.settings, seed=seed)
    with state.with_best_noted():
        while not state.is_over:
            progress = state.learn(controller.step(state.updater.updates))
            if watch is not None and watch(progress) is False:
                break
    return state.result(evaluate)
