"""Draws placements, has them evaluated, and says how the policy should change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bow.errors import SettingError
from bow.planning.placement.elites import Elites
from bow.planning.placement.learning_settings import LearningSettings
from bow.planning.placement.policy import PlacementPolicy
from bow.planning.placement.reinforce import Baseline, policy_loss, sanitised
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
