"""All learners in one vectorised learning task: `vmap` over the replica matrix, compiled."""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from bow.engines.base import Engine
from bow.engines.eager import Eager, InTurn
from bow.engines.outcome import Batches, Outcome, Stacked, TaskSettings
from bow.engines.random import task_random
from bow.engines.sgd_round import SgdRound
from bow.engines.sgd_state import fits
from bow.engines.task import Batch, compiled
from bow.engines.together import StackedBuffers, TogetherTask, vectorised, writing_results
from bow.errors import BowError, ModelError, reason
from bow.graph.side_effects import changed, python_state
from bow.replicas import LearnerGroup
from bow.sync import SMA, Synchroniser

WHOLE = "whole round"


class Fused(Engine):
    """Runs the learning tasks of all learners as one: the kernels of a step are shared by all of them.

    Linear layers become batched matrix products and convolutions grouped ones. Worth it where a learning task is
    many tiny kernels. The first of these that works is used, and the reasons for going down are kept: compiled,
    `vmap` without compiling, `eager`. Rounds whose batches differ in shape, or in which a learner sits out, run in
    `eager`.
    """

    name = "fused"

    def __init__(self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> None:
        super().__init__(group, sync, settings)
        self._in_turn = InTurn(group, dataclasses.replace(settings, compile=False))
        self._levels: list[tuple[str, TogetherTask]] = []
        self._whole_round: SgdRound | None = None
        self._failed: set[str] = set()
        self._has_run = False
        self._python: dict[str, str] = {}
        self._build()

    @property
    def description(self) -> str:
        """`fused`, `fused (not compiled)`, or `eager` after falling back."""
        return self._levels[0][0] if self._levels else Eager.name

    def resized(self) -> None:
        """Stack the buffers anew; the next round compiles for the new number of learners."""
        self._in_turn.resized()
        if self._levels:
            self._build()

    def learn_and_step(self, batches: Batches, due: bool) -> Outcome:
        """Run the whole round in one region where optimizer and synchroniser are of the kind that fits."""
        if not self._has_run:
            self._python = python_state(self.group.learners[0].module)
        stacked = stack_batches(batches) if self._whole_round is not None else None
        if stacked is None or self._whole_round is None:
            return super().learn_and_step(batches, due)
        began = time.perf_counter_ns()
        try:
            with self._random():
                outcome = self._whole_round(self._buffers.tensors(), stacked, due)
        except BowError:
            raise
        except Exception as error:
            outcome = super().learn_and_step(Stacked(stacked), due)  # raises if the error is the user's
            self._whole_round = None
            self._failed.add(WHOLE)
            self._note("engine changed", f"the round cannot be one region ({reason(error)}); running it in parts")
        else:
            self._has_run = True
            self.record(WHOLE, "round", began)
        return outcome

    def learn(self, batches: Batches) -> Outcome:
        """Run all learning tasks at once, or in turn where that is impossible."""
        stacked = stack_batches(batches) if self._levels else None
        failures: dict[str, str] = {}
        outcome = None
        for name, run in self._levels if stacked is not None else []:
            try:
                outcome = self._learn_together(run, stacked)
                self._has_run = True
                break
            except BowError:
                raise
            except Exception as error:
                failures[name] = f"{name} does not work for this model ({type(error).__name__}: {reason(error)})"
        if (
            failures
            and not self._has_run
            and (names := changed(self._python, python_state(self.group.learners[0].module)))
        ):
            raise ModelError(
                f"{next(iter(failures.values()))}, and has changed {names[0]} by then; "
                'keep what changes in a buffer, or use engine="eager"'
            )
        if outcome is None:
            self._buffers.moved()
            outcome = self._in_turn.learn(batches, self.round_index)  # an error that comes again here is the user's
        self._failed.update(failures)
        self._levels = [level for level in self._levels if level[0] not in failures]
        for failure in failures.values():
            message = f"{failure}; running {self.description}"
            self._note("engine changed", message)
            warnings.warn(message, stacklevel=5)
        return outcome

    def _learn_together(self, run: TogetherTask, batch: Batch) -> Outcome:
        matrix = self.group.matrix
        with self._random():
            loss, finite, metrics = run(matrix.weights, matrix.gradients, self._buffers.tensors(), batch)
        return Outcome(loss, finite, [True] * len(self.group), metrics)

    @contextlib.contextmanager
    def _random(self) -> Iterator[None]:
        with task_random(self.group.device) as generator:
            generator.manual_seed(self.round_seed)
            yield

    def _build(self) -> None:
        group = self.group
        together = vectorised(group, self.settings)
        run = writing_results(together)
        levels = [("fused", compiled(run)), ("fused (not compiled)", run)]
        self._levels = [(name, run) for name, run in levels if name not in self._failed]
        whole = WHOLE not in self._failed and fits(group, self.sync, self.settings)
        self._whole_round = SgdRound(group, cast(SMA, self.sync), together) if whole else None
        self._buffers = StackedBuffers(group)
        self._has_run = False


def stack_batches(batches: Batches) -> Batch | None:
    """The learners' batches as one pytree of `[learners, batch, ...]` tensors; None where they do not fit."""
    if isinstance(batches, Stacked):
        return batches.value
    flat: list[tuple[list[Any], Any]] = []
    for batch in batches:
        if batch is None:
            return None
        flat.append(tree_flatten(batch))
    first_leaves, spec = flat[0]
    for leaves, other in flat:
        if other != spec or any(not isinstance(leaf, Tensor) for leaf in leaves):
            return None
        if any(a.shape != b.shape for a, b in zip(leaves, first_leaves, strict=True)):
            return None
    return tree_map(lambda *tensors: torch.stack(tensors), *batches)
