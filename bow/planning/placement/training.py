"""Trains a policy in one process: draw, evaluate, learn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bow.planning.placement.controller import Controller, Evaluate
from bow.planning.placement.findings import Watch
from bow.planning.placement.learned import LearnedPlacement
from bow.planning.placement.learning_settings import LearningSettings
from bow.planning.placement.operations import Operations
from bow.planning.placement.policy import PolicySettings
from bow.planning.placement.training_state import TrainingState


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
