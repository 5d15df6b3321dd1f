"""All learners in one vectorised learning task: `vmap` over the replica matrix, compiled."""

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bow.data import Batch, Batches, Stacked
from bow.devices.kernels import sgd_step
from bow.engines.batched_layers import batched_convolutions
from bow.engines.batches import stack_batches
from bow.engines.context import RoundContext
from bow.engines.eager import Eager, SequentialTasks, check_frozen, sums_of_frozen
from bow.engines.outcome import LearningConfig, Outcome
from bow.engines.random import NoGenerators
from bow.engines.runner import InParts, TaskRunner
from bow.engines.step_state import Numbers, StepState, fits
from bow.engines.task import LearningTask, Metrics, PureTask, TaskResult, compiled
from bow.errors import BowError, ModelError, reason
from bow.graph.execution import lent_generator
from bow.graph.refusal import PythonState, changed, python_state
from bow.interruption import Interruption
from bow.replicas import LearnerGroup, buffer_slots, tied_buffers
from bow.sync import SMA

# `(rows, buffers, batch) -> TaskResult`, each with a leading learner dimension.
Vectorised: TypeAlias = Callable[[Tensor, dict[str, Tensor], Batch], TaskResult]

# `(rows, gradients, buffers, batch) -> (loss, finite, metrics)` of all learners at once.
TogetherTask: TypeAlias = Callable[..., tuple[Tensor, Tensor, Metrics]]


def vectorised(group: LearnerGroup, settings: LearningConfig) -> Vectorised:
    task = LearningTask(group.learners[0].module, settings.task_step, group.device, settings.engine.precision)
    function: Vectorised = torch.vmap(PureTask(task, group.layout), randomness="different")

    slots = buffer_slots(group.learners[0].module)
    empty = [(name, owner, key) for name, (owner, key) in slots if owner._buffers[key] is None]

    def run(rows: Tensor, buffers: dict[str, Tensor], batch: Batch) -> TaskResult:
        if torch.compiler.is_compiling():  # torch compiles no operator that takes a generator
            return function(rows, buffers, batch)
        made = []
        try:
            with NoGenerators():  # type: ignore[no-untyped-call]
                result = function(rows, buffers, batch)
        finally:
            for name, owner, key in empty:
                if owner._buffers[key] is not None:
                    made.append(name)
                    owner._buffers[key] = None
        if made:
            raise RuntimeError(f"the step makes buffer {made[0]!r}; register it with a tensor")
        return result

    return run


def writing_results(together: Vectorised, *, compiles: bool) -> TogetherTask:
    def learn(
        rows: Tensor, gradients: Tensor, buffers: dict[str, Tensor], batch: Batch
    ) -> tuple[Tensor, Tensor, Metrics, dict[str, Tensor]]:
        result = together(rows, buffers, batch)
        gradients.copy_(result.gradient)
        return result.loss, result.finite, result.metrics, finite_buffers(buffers, result)

    inner = compiled(learn) if compiles else learn

    def run(
        rows: Tensor, gradients: Tensor, buffers: dict[str, Tensor], batch: Batch
    ) -> tuple[Tensor, Tensor, Metrics]:
        loss, finite, metrics, after = inner(rows, gradients, buffers, batch)
        write_buffers(buffers, after)
        return loss, finite, metrics

    return run


def finite_buffers(buffers: dict[str, Tensor], result: TaskResult) -> dict[str, Tensor]:
    """Return the buffers after a task; learners whose task is not finite take no step."""
    kept = {}
    for name, after in result.buffers.items():
        before = buffers[name]
        if after.shape != before.shape or after.dtype != before.dtype:  # raised before anything is written
            raise RuntimeError(f"the step changes the shape or dtype of buffer {name!r}")
        kept[name] = torch.where(result.finite.view(-1, *[1] * (after.dim() - 1)), after, before)
    return kept


def write_buffers(buffers: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Write what a task has made of buffers, outside of its compiled region."""
    # torch.compile writes mutated inputs back in the order of the arguments, so that one that receives the old value of
    # another would receive the new one (seen in torch 2.13). Only tensors of one dtype share a kernel on a GPU.
    for dtype in dict.fromkeys(value.dtype for value in after.values()):
        names = [name for name, value in after.items() if value.dtype == dtype]
        torch._foreach_copy_([buffers[name] for name in names], [after[name] for name in names])


def own_part(learner: int, value: Any) -> Any:
    """Return a learner's part of what a step has kept from a task of all learners."""
    if not isinstance(value, Tensor):
        return copy.copy(value) if isinstance(value, set | dict | list) else value  # learners must not share it
    tensor, dim = unwrapped(value)
    return tensor if dim < 0 else tensor.select(dim, learner)


def unwrapped(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a tensor without what `vmap` and `grad` have wrapped it in, and its dimension of learners; -1: none."""
    functorch, dim = torch._C._functorch, -1
    while functorch.is_functorch_wrapped_tensor(tensor):
        dim, tensor = max(dim, functorch.maybe_get_bdim(tensor)), functorch.get_unwrapped(tensor)
    return tensor, dim


class StackedBuffers:
    """The learners' buffers, stacked by name; every learner's module has its row."""

    def __init__(self, group: LearnerGroup) -> None:
        self._group = group
        self._tensors: dict[str, Tensor] = {}
        self._valid = False

    def moved(self) -> None:
        self._valid = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the stacked buffers by name, after binding those of the learners to their rows."""
        if self._valid:
            return self._tensors
        slots = [dict(buffer_slots(learner.module)) for learner in self._group.learners]
        ties = tied_buffers(self._group.learners[0].module)
        self._tensors = {}
        for name in slots[0]:
            owners = [s[name] for s in slots]
            values = [owner._buffers[key] for owner, key in owners]
            if name in ties:
                self._tensors[name] = self._tensors[ties[name]]
                for (owner, key), (other, first) in zip(owners, (s[ties[name]] for s in slots), strict=True):
                    owner._buffers[key] = other._buffers[first]
            elif values[0] is not None:
                self._tensors[name] = torch.stack([v for v in values if v is not None])
                for row, (owner, key) in zip(self._tensors[name], owners, strict=True):
                    owner._buffers[key] = row
        self._valid = True
        return self._tensors


WHOLE = "whole round"


class Fused(TaskRunner):
    """Run the learning tasks of all learners as one task that shares its kernels."""

    # Pays where a learning task is many tiny kernels. The first of these that works is used: compiled, `vmap` without
    # compiling, `eager`. Rounds whose batches differ in shape, or in which a learner sits out, run in `eager`.

    name = "fused"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._in_turn = SequentialTasks(context.group, context.settings.compiled(False))
        self._levels: list[tuple[str, TogetherTask]] = []
        self._whole_round: SgdRound | None = None
        self._failed: set[str] = set()
        self._has_run = self._in_region = False
        self._python: PythonState = {}
        self._frozen: dict[str, Tensor] = {}
        self._build()

    @property
    def description(self) -> str:
        return self._levels[0][0] if self._levels else Eager.name

    @property
    def state(self) -> dict[str, Any]:
        return {"failed": sorted(self._failed)}

    def load(self, state: Mapping[str, Any]) -> None:
        if new := set(state["failed"]) - self._failed:
            self._failed |= new
            self._build()
            if new - {WHOLE}:
                message = f"before this training was resumed, {' and '.join(sorted(new))} did not work for this model"
                self.context.log.warn(f"{message}; running {self.description}")

    def resized(self) -> None:
        self._in_turn.resized()
        if self._levels:
            self._build()

    def learn_and_step(self, batches: Batches, due: bool, in_parts: InParts) -> Outcome:
        if not self._has_run:
            first = self.group.learners[0]
            self._python, self._frozen = python_state(first.module), sums_of_frozen(self.group, first)
        stacked = stack_batches(batches) if self._whole_round is not None and self._fits else None
        self._in_region = stacked is not None
        if stacked is None or self._whole_round is None:
            return in_parts(batches, due)
        log = self.context.log
        began = time.perf_counter_ns()
        try:
            with self._random():
                outcome = self._whole_round(self._buffers.tensors(), stacked, due)
        except BowError:
            raise
        except Exception as error:
            outcome = in_parts(Stacked(stacked), due)  # raises again if the error is the user's
            if Interruption.pending:
                return outcome
            self._whole_round = None
            self._failed.add(WHOLE)
            log.record_event("engine changed", f"the round cannot be one region ({reason(error)}); running it in parts")
        else:
            self._note_run()
            log.record(WHOLE, "round", began)
        return outcome

    @property
    def has_written(self) -> bool:
        """Whether a region may have written: it does not report when."""
        return self._has_run and self._in_region

    @property
    def _fits(self) -> bool:
        """Whether a round can be one region; hooks and flags of the optimizer may change that."""
        group, sync, settings = self.group, self.context.sync, self.context.settings
        # In bfloat16 the region would round hyperparameters and intermediate results, other than torch's optimizer.
        return group.matrix.z.dtype != torch.bfloat16 and fits(group, sync, settings)

    def learn(self, batches: Batches) -> Outcome:
        stacked = stack_batches(batches) if self._levels else None
        if stacked is not None:
            self._buffers.tensors()
        self.context.snapshot.take()
        failures: dict[str, str] = {}
        outcome = None
        is_asked_to_end = Interruption.pending and not self._has_run  # nothing is compiled any more
        for name, run in self._levels if stacked is not None and not is_asked_to_end else []:
            try:
                outcome = self._learn_together(run, stacked)
                self._note_run()
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
                f"{next(iter(failures.values()))}, but the attempt changed {names[0]}; "
                'keep what changes in a buffer, or use engine="eager"'
            )
        if outcome is None:
            self._buffers.moved()
            outcome = self._in_turn.learn(batches, self.context.round_index)  # raises again if the error is the user's
        if Interruption.pending:
            return outcome
        self._failed.update(failures)
        self._levels = [level for level in self._levels if level[0] not in failures]
        for failure in failures.values():
            self.context.log.warn(f"{failure}; running {self.description}")
        return outcome

    def _note_run(self) -> None:
        """After the first run, fall back to `eager` if the step changed Python values: those of the first learner."""
        if self._has_run:
            return
        self._has_run = True
        check_frozen(self.group, self.group.learners[0], self._frozen)
        learners = [dict(learner.module.named_modules()) for learner in self.group.learners]
        names = changed(self._python, python_state(learners[0][""])) if len(learners) > 1 else []
        if not names:
            return
        for _, path, name in names:
            if path is None or path not in learners[0]:
                continue
            first = vars(learners[0][path]).copy()
            for index, modules in enumerate(learners):
                if path in modules:  # the step may have added modules
                    own = modules[path].__dict__
                    own.pop(name, None)  # which the step may have done
                    if name in first:
                        own[name] = tree_map(functools.partial(own_part, index), first[name])
        self._failed.update([WHOLE, *(name for name, _ in self._levels)])
        self._levels, self._whole_round = [], None
        why = f"the step changes {names[0]} in Python, which is separate for every learner"
        self.context.log.warn(f"{why}; running {self.description}")

    def _learn_together(self, run: TogetherTask, batch: Batch) -> Outcome:
        matrix = self.group.matrix
        with self._random():
            loss, finite, metrics = run(matrix.weights, matrix.gradients, self._buffers.tensors(), batch)
        return Outcome(loss, finite, [True] * len(self.group), metrics)

    @contextlib.contextmanager
    def _random(self) -> Iterator[None]:
        with lent_generator(self.group.device) as generator, batched_convolutions({}):  # all grouped on a CPU
            generator.manual_seed(self.context.round_seed)
            yield

    def _build(self) -> None:
        context = self.context
        together = vectorised(self.group, context.settings)
        ways = (("fused", True), ("fused (not compiled)", False))
        levels = [(name, writing_results(together, compiles=compiles)) for name, compiles in ways]
        self._levels = [(name, run) for name, run in levels if name not in self._failed]
        whole = WHOLE not in self._failed and self._fits
        self._whole_round = SgdRound(self.group, cast(SMA, context.sync), together) if whole else None
        self._buffers = StackedBuffers(self.group)
        self._has_run = False


class SgdRound:
    """A whole round in one compiled region: learning tasks, SGD with momentum, and SMA's synchronisation task."""

    # One pass over the memory: for a model of ten thousand parameters the separate passes of `torch.optim.SGD` and
    # `SMA` take longer than the learning tasks themselves.

    def __init__(self, group: LearnerGroup, sync: SMA, together: Callable[..., TaskResult]) -> None:
        self._group = group
        self._together = together
        self._state = StepState(group, sync)
        z = group.matrix.z
        self._hyper = torch.zeros(len(Numbers._fields), dtype=z.dtype, device=z.device)
        self._hyper_values: Numbers | None = None
        self._regions = {True: self._region(synchronise=True), False: self._region(synchronise=False)}

    def __call__(self, buffers: dict[str, Tensor], batch: Batch, due: bool) -> Outcome:
        self._update_hyperparameters()
        self._state.begin_round()
        matrix = self._group.matrix
        z, z_prev = matrix.z, matrix.state["z_prev"]
        loss, finite, metrics, z_next, after = self._regions[due](
            matrix.weights, self._state.moments[0], z, z_prev, self._hyper, buffers, batch
        )
        write_buffers(buffers, after)
        if due:  # outside of the region, for the same reason
            z_prev.copy_(z)
            z.copy_(z_next)
        return Outcome(loss, finite, [True] * len(self._group), metrics)

    def _region(self, synchronise: bool) -> Callable[..., tuple[Tensor, Tensor, Metrics, Tensor, dict[str, Tensor]]]:
        together = self._together

        def run(
            weights: Tensor,
            momenta: Tensor,
            z: Tensor,
            z_prev: Tensor,
            hyper: Tensor,
            buffers: dict[str, Tensor],
            batch: Batch,
        ) -> tuple[Tensor, Tensor, Metrics, Tensor, dict[str, Tensor]]:
            *_, alpha, mu = hyper.unbind()
            corrections = torch.sub(weights, z).mul(alpha)  # first: a step may write to its weights
            result = together(weights, buffers, batch)
            after = finite_buffers(buffers, result)
            finite, z_next = result.finite.unsqueeze(1), z
            moved, momenta_next = sgd_step(weights, momenta, result.gradient, finite, hyper.unbind())
            if synchronise:
                moved, z_next = moved - corrections, torch.addcmul(z + corrections.sum(0), z - z_prev, mu)
            momenta.copy_(momenta_next)
            weights.copy_(torch.where(finite, moved, z_next))  # the same arithmetic as in the kernels
            return result.loss, result.finite & torch.isfinite(moved.sum(1)), result.metrics, z_next, after

        return compiled(run)

    def _update_hyperparameters(self) -> None:
        values = self._state.numbers()
        if values != self._hyper_values:
            self._hyper.copy_(torch.tensor(values, dtype=self._hyper.dtype))
            self._hyper_values = values
