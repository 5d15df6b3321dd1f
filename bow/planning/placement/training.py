"""Trains a policy by REINFORCE: draw placements, evaluate them, learn."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bow.errors import ScheduleError, SettingError
from bow.planning.placement.policy import Operations, PlacementPolicy, PolicySettings
from bow.seeds import derive_seed

LEAST_NATS = 1e-3  # A policy that is surer than this counts as one that is not


@dataclass(frozen=True)
class LearningSettings:
    """How a policy learns; docs/placement.md says where it differs from the paper, and why."""

    samples: int = 20  # placements that are drawn for each update, K
    learning_rate: float = 0.01  # of Adam
    gradient_norm: float = 1.0  # to which gradients are clipped
    baseline_decay: float = 0.9  # of the moving average that placements are compared with
    mask_failures_after: int = 200  # after so many updates failures have no influence any more
    # Of this part of the samples, some devices are drawn uniformly, whatever the policy would have: also a policy that
    # is sure goes on looking at neighbours. The policy learns of these samples what becomes an elite, and nothing else:
    # a random choice says nothing about the others.
    exploring: float = 0.5
    random_choices: float = 2.0  # in each of them so many devices, on average
    entropy: float = 0.03  # so much is added for each nat of entropy
    # Where a placement has fewer nats of entropy, a nat is worth more, by as many times: a policy that always draws the
    # same learns nothing any more.
    least_entropy: float = 5.0
    elites: int = 10  # each update also makes so many of the best placements so far likelier

    @property
    def explorers(self) -> int:
        return int(self.exploring * self.samples)

    def worth_of_entropy(self, nats: float) -> float:
        return self.entropy * max(1.0, self.least_entropy / max(nats, LEAST_NATS))


FAILING_FACTOR = 10.0  # failing counts as so many times the slowest placement of the first that fit


@dataclass
class Baseline:
    """The moving average of signals, and of the squares of what they are off by."""

    # R = sqrt(time),  A = (R - B) / S,  B <- decay * B + (1 - decay) * mean(R),  S^2 <- the same of (R - B)^2
    # It begins at the failing signal, so that at first all that fits is good news.

    decay: float = 0.9  # of the averages
    failing_s: float | None = None  # seconds that stand for a placement that does not fit or fails; None: not known yet
    value: float | None = None  # B; None: there was no signal yet
    square: float | None = None  # the moving mean square of advantages; None: there was none yet

    def advantages(self, times: Sequence[float | None], *, mask_failures: bool) -> Tensor:
        """How much worse than usual placements are, float64; 0 for those that shall have no influence."""
        signals = self._signals(times, mask_failures)
        known = [signal for signal in signals if signal is not None]
        if not known:
            return torch.zeros(len(times), dtype=torch.float64)
        assert self.failing_s is not None
        baseline = math.sqrt(self.failing_s) if self.value is None else self.value
        self.value = self.decay * baseline + (1 - self.decay) * math.fsum(known) / len(known)
        square = math.fsum((signal - baseline) * (signal - baseline) for signal in known) / len(known)
        self.square = square if self.square is None else self.decay * self.square + (1 - self.decay) * square
        scale = math.sqrt(self.square) or 1.0
        values = [0.0 if signal is None else (signal - baseline) / scale for signal in signals]
        return torch.tensor(values, dtype=torch.float64)

    def _signals(self, times: Sequence[float | None], mask_failures: bool) -> list[float | None]:
        slowest = max((time for time in times if time is not None), default=None)
        if self.failing_s is None and slowest is not None:
            self.failing_s = FAILING_FACTOR * slowest
        failing = None if mask_failures or self.failing_s is None else math.sqrt(self.failing_s)
        return [failing if time is None else math.sqrt(time) for time in times]


def sanitised(times: Sequence[float | None]) -> list[float | None]:
    """Times as they can be learnt from: what is not a finite time above 0 is a failure."""
    return [time if time is not None and math.isfinite(time) and time > 0 else None for time in times]


def policy_loss(advantages: Tensor, log_probabilities: Tensor, entropies: Tensor, entropy_weight: float) -> Tensor:
    """What is minimised: its gradient is the policy gradient's estimate, less that of the entropy."""
    # loss = 1/K sum_k A_k log p(P_k) - entropy_weight * 1/K sum_k H_k - 1/E sum_e log p(P_e), elites behind the drawn
    count = len(advantages)
    drawn, elites = log_probabilities[:count], log_probabilities[count:]
    loss = (advantages.to(drawn.dtype) * drawn).mean()
    if entropy_weight:
        loss = loss - entropy_weight * entropies[:count].mean()
    return loss - elites.mean() if len(elites) else loss


@dataclass
class Elites:
    """The best placements so far, each once, the fastest first."""

    count: int
    found: tuple[tuple[float, tuple[int, ...]], ...] = ()

    @property
    def placements(self) -> list[tuple[int, ...]]:
        """The fastest first."""
        return [placement for _, placement in self.found]

    def add(self, placements: Sequence[tuple[int, ...]], times: Sequence[float | None]) -> None:
        if self.count:
            pairs = zip(times, placements, strict=True)
            fits = {(time, placement) for time, placement in pairs if time is not None}
            self.found = tuple(sorted({*self.found, *fits})[: self.count])


class Updater:
    """Adam with clipped gradients; what is not finite is left out."""

    def __init__(self, policy: nn.Module, settings: LearningSettings) -> None:
        self._parameters = list(policy.parameters())
        self._norm = settings.gradient_norm
        self._adam = torch.optim.Adam(self._parameters, lr=settings.learning_rate, foreach=True)
        self.updates = 0  # with those left out
        self.skipped = 0  # left out, because a gradient was not finite

    def update(self) -> bool:
        """Change the parameters by their gradients; whether it was done."""
        # Where all gradients are 0 there was nothing to learn, such as only failures that are masked: then Adam's
        # momentum does not move the parameters either.
        norm = nn.utils.clip_grad_norm_(self._parameters, self._norm)
        self.updates += 1
        self.skipped += not norm.isfinite()
        if not norm.isfinite() or norm == 0:
            return False
        self._adam.step()
        return True


def flat_gradients(policy: nn.Module) -> Tensor:
    """All gradients one behind the other; 0 for parameters that have none."""
    pairs = ((each, each.grad) for each in policy.parameters())
    return torch.cat([(each.new_zeros(each.numel()) if grad is None else grad.flatten()) for each, grad in pairs])


def set_gradients(policy: nn.Module, gradients: Tensor) -> None:
    parameters = list(policy.parameters())
    parts = torch.split(gradients, [each.numel() for each in parameters])
    for each, part in zip(parameters, parts, strict=True):
        each.grad = part.view_as(each).clone()


Placement: TypeAlias = tuple[int, ...]  # By operation: its device

Evaluate: TypeAlias = Callable[[list[Placement]], Sequence[float | None]]
"""Seconds of a step with each placement; None: it does not fit or fails."""


@dataclass(frozen=True)
class SampledPlacements:
    """What a controller drew for one update."""

    placements: tuple[Placement, ...]  # that were drawn
    times: tuple[float | None, ...]  # by placement, in seconds; None: it does not fit or failed
    entropy: float  # of the policy, in nats for each operation, averaged


class Controller:
    """Draws placements from a policy and estimates the gradient; baseline and elites are its own."""

    def __init__(
        self, policy: PlacementPolicy, evaluate: Evaluate, settings: LearningSettings, *, seed: int = 0, number: int = 0
    ) -> None:
        self.policy = policy
        self._evaluate, self._settings = evaluate, settings
        self._generator = torch.Generator().manual_seed(derive_seed(seed, number))
        self._baseline = Baseline(settings.baseline_decay)
        self._elites = Elites(settings.elites)

    def step(self, update: int) -> SampledPlacements:
        settings = self._settings
        drawn = self.policy.sample(
            settings.samples,
            self._generator,
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
        loss = policy_loss(advantages, *likelihood, settings.worth_of_entropy(nats))
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
    best: BestPlacement | None  # the best placement so far; None: none has fitted yet
    batch: SampledPlacements  # the newest placements


Watch: TypeAlias = Callable[[PolicyProgress], bool | None]  # called after each update; False ends the training


@dataclass
class PlacementHistory:
    """All that was drawn, counted, and the best of it."""

    samples: int = 0  # so many placements were drawn
    bests: tuple[BestPlacement, ...] = ()  # each placement that was better than all before; the last one is the best

    @property
    def best(self) -> BestPlacement | None:
        return self.bests[-1] if self.bests else None

    def add(self, batch: SampledPlacements) -> None:
        for placement, time_s in zip(batch.placements, batch.times, strict=True):
            self.samples += 1
            if time_s is not None and (self.best is None or time_s < self.best.time_s):
                self.bests = (*self.bests, BestPlacement(placement, time_s, self.samples))


@dataclass(frozen=True)
class LearnedPlacement:
    """What a training has found."""

    best: BestPlacement  # the best placement that was drawn
    greedy: Placement  # the one that the trained policy decodes greedily
    policy: PlacementPolicy  # that was trained
    history: PlacementHistory  # what was drawn, and each placement that was better than all before
    updates: int  # so many there were


class TrainingState:
    """A training under way, in one process or several: policy, optimizer, and what was found."""

    def __init__(
        self,
        operations: Operations,
        settings: LearningSettings,
        sizes: PolicySettings,
        seed: int,
        *,
        updates: int,
        budget_s: float | None,
    ) -> None:
        self.policy = PlacementPolicy(operations, sizes, seed=seed)
        self.updater = Updater(self.policy, settings)
        self.history = PlacementHistory()
        self._updates, self._budget_s = updates, budget_s
        self._start = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether updates or seconds are spent."""
        is_late = self._budget_s is not None and time.perf_counter() - self._start >= self._budget_s
        return is_late or self.updater.updates >= self._updates

    def learn(self, batch: SampledPlacements) -> PolicyProgress:
        """Change the policy by its gradients."""
        self.history.add(batch)
        self.updater.update()
        return PolicyProgress(self.updater.updates, self.history.samples, self.history.best, batch)

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

    def result(self) -> LearnedPlacement:
        best = self.history.best
        if best is None:
            raise ScheduleError(
                f"none of {self.history.samples} placements that were drawn fits; train longer, or with more memory"
            )
        return LearnedPlacement(best, self.policy.greedy(), self.policy, self.history, self.updater.updates)
