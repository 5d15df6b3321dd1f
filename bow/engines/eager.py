"""Learners one after another by ordinary autograd: the reference for all other engines."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bow.data import Batch, Batches, batch_of
from bow.devices import cuda_device
from bow.engines.batches import stored
from bow.engines.context import RoundContext
from bow.engines.offload import Around, OffloadedTasks
from bow.engines.outcome import LearningConfig, Outcome
from bow.engines.random import DrawWatch
from bow.engines.runner import TaskRunner
from bow.engines.task import Learned, LearningTask, PureTask, TaskResult, collected, compiled, out_of_range
from bow.errors import BowError, ModelError, reason, warn_user
from bow.graph.execution import lent_generator
from bow.graph.outside import OutsideTensors
from bow.graph.refusal import changed, python_state
from bow.interruption import Interruption
from bow.replicas import Learner, LearnerGroup, buffer_state, load_buffers

Forward: TypeAlias = Callable[[], contextlib.AbstractContextManager[Any]]  # makes the context of one forward pass


class Eager(TaskRunner):
    """Run any module with any optimizer; all other engines must agree with it."""

    # A task views the learner's row as its parameters, applies them with `functional_call`, and differentiates the loss
    # with respect to the row: the gradient arrives contiguous and equals ordinary autograd bit for bit.

    name = "eager"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        group, device = context.group, context.device
        if device is None and group.device.type == "cuda":
            device = cuda_device(group.device)
        self.offloaded: OffloadedTasks | None = None
        if context.settings.engine.offload and device is not None:
            self.offloaded = OffloadedTasks(group, device, at_once=False)
        self._in_turn = SequentialTasks(group, context.settings, self.offloaded)

    @property
    def state(self) -> dict[str, Any]:
        return self._in_turn.tasks.state

    def load(self, state: Mapping[str, Any]) -> None:
        self._in_turn.tasks.load(state)

    def resized(self) -> None:
        self._in_turn.resized()

    def learn(self, batches: Batches) -> Outcome:
        self.context.snapshot.take()
        return self._in_turn.learn(batches, self.context.round_index)

    def close(self) -> None:
        if self.offloaded is not None:
            self.offloaded.close()


class SequentialTasks:
    """Run the learning tasks of a device one after another."""

    def __init__(self, group: LearnerGroup, settings: LearningConfig, around: Around | None = None) -> None:
        self._group = group
        self._seed = settings.seed
        self.tasks = LearningTasks(group, settings, around)

    def resized(self) -> None:
        self.tasks.resized()

    def learn(self, batches: Batches, round_index: int, watch: DrawWatch | None = None) -> Outcome:
        group = self._group
        learned: list[Learned | None] = [None] * len(group)
        with lent_generator(group.device) as generator:
            for index in range(len(group)):
                batch = batch_of(batches, index)
                if batch is None:
                    group.learners[index].gradient.zero_()
                    continue
                generator.manual_seed(group.task_seed(self._seed, round_index, index))
                if watch is None:
                    learned[index] = self.tasks.run(index, batch)
                else:
                    with watch:
                        learned[index] = self.tasks.run(index, batch, watch.forward)
        losses, metrics = collected(learned, group.matrix.z)
        finite = torch.isfinite(losses) & torch.isfinite(group.matrix.gradients.sum(1))
        return Outcome(losses, finite, [each is not None for each in learned], metrics)


class LearningTasks:
    """The learning tasks of a device's learners, by autograd or compiled; several can run at the same time."""

    def __init__(self, group: LearnerGroup, settings: LearningConfig, around: Around | None = None) -> None:
        self._group = group
        self._settings = settings
        self._around = around
        self.resized()
        self._compiled = self._compile() if settings.engine.compile else None
        self._is_checked = False  # whether the compiled task (learner 0's) was found to change no Python values

    def resized(self) -> None:
        device, step, precision = self._group.device, self._settings.task_step, self._settings.engine.precision
        modules, names = [learner.module for learner in self._group.learners], self._group.layout.names
        self._has_run = False  # whether a loss was found to depend on no tensors outside of its model
        self._tasks = [LearningTask(module, step, device, precision) for module in modules]
        named = (module.named_parameters(remove_duplicate=False) for module in modules)
        self._frozen = [{name: p for name, p in each if name not in names} for each in named]  # members have their own

    @property
    def is_compiled(self) -> bool:
        """Whether tasks run compiled; False once compiling has failed."""
        return self._compiled is not None

    @property
    def state(self) -> dict[str, Any]:
        return {"uncompiled": self._settings.engine.compile and self._compiled is None}

    def load(self, state: Mapping[str, Any]) -> None:
        if state["uncompiled"] and self._compiled is not None:
            self._stop_compiling("compiling had failed before the checkpoint")

    def run(self, learner: int, batch: Batch, forward: Forward = contextlib.nullcontext) -> Learned:
        """Run one learning task; its gradient goes to the learner's row of `G`."""
        around = contextlib.nullcontext() if self._around is None else self._around(learner, batch)
        with around:
            return self._learn_one(learner, batch, forward)

    def _learn_one(self, index: int, batch: Batch, forward: Forward) -> Learned:
        learner = self._group.learners[index]
        try:
            compiled = self._compiled  # another learner's failure may end compiling meanwhile
            if compiled is not None and (self._is_checked or index == 0):
                return self._learn_compiled(compiled, index, batch)
            with torch.enable_grad():
                parameters = {f"model.{name}": view for name, view in self._group.layout.views(learner.row).items()}
                is_first = not self._has_run
                outside = OutsideTensors(self._settings.step, learner.module) if is_first else None
                frozen = sums_of_frozen(self._group, learner) if is_first else {}
                # The views have every name of a tied parameter; looking for ties takes longer than a tiny task.
                with forward():
                    loss, metrics = functional_call(self._tasks[index], parameters, (batch,), tie_weights=False)
                if outside is not None:
                    outside.check(loss, [learner.row, self._frozen[index], batch])
                    _check_views(learner, parameters)
                    check_frozen(self._group, learner, frozen)
                    self._has_run = True
                (gradient,) = torch.autograd.grad(loss, learner.row)
        except IndexError as error:
            raise out_of_range(error) from error
        except RuntimeError as error:
            if "use_reentrant" in str(error):
                raise ModelError(
                    "activation checkpointing with use_reentrant=True needs .backward(), and bow calls "
                    "torch.autograd.grad; call checkpoint with use_reentrant=False"
                ) from error
            if "sparse" not in str(error):
                raise
            raise ModelError(
                f"a layer of the model has sparse gradients, which bow does not support ({reason(error)}); "
                "create it with sparse=False"
            ) from error
        learner.gradient.copy_(gradient)
        # Copies: a metric may be a buffer or a parameter, which the next task or the step changes.
        return Learned(loss.detach(), {name: value.detach().clone() for name, value in metrics.items()})

    def _learn_compiled(self, compiled: Callable[..., TaskResult], index: int, batch: Batch) -> Learned:
        learner = self._group.learners[index]
        before = None if self._is_checked else python_state(learner.module)
        frozen = {} if self._is_checked else sums_of_frozen(self._group, learner)
        buffers = buffer_state(learner.module)
        try:
            own = {name: parameter.detach() for name, parameter in self._frozen[index].items()}
            result = compiled(learner.row.detach(), buffers, stored(batch), own)
        except (BowError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            self._compiled = None
            learned = self._learn_one(index, batch, contextlib.nullcontext)  # raises if the error is the user's
            if Interruption.pending:
                self._compiled = compiled  # for the training that resumes this one
            else:
                self._stop_compiling(reason(error))
            return learned
        if before is not None:
            self._is_checked = True
            check_frozen(self._group, learner, frozen)
            if names := changed(before, python_state(learner.module)):
                self._stop_compiling(f"the step changes {names[0]} in Python, which is separate for every learner")
            elif made := buffer_state(learner.module).keys() - buffers.keys():
                self._stop_compiling(f"the step makes buffer {min(made)!r}; register it with a tensor")
        learner.gradient.copy_(result.gradient)
        load_buffers(learner.module, result.buffers)
        return Learned(result.loss, result.metrics)

    def _stop_compiling(self, why: str) -> None:
        self._compiled = None
        warn_user(f"the learning task runs without torch.compile ({why})")

    def _compile(self) -> Callable[..., TaskResult]:
        alone = PureTask(self._tasks[0], self._group.layout)

        def run(row: Tensor, buffers: dict[str, Tensor], batch: Batch, frozen: dict[str, Tensor]) -> TaskResult:
            return alone(row, buffers, batch, frozen)

        return compiled(run)


def _check_views(learner: Learner, views: Mapping[str, Tensor]) -> None:
    """Raise if the first task has changed parameters in a way that training would ignore."""
    memory = learner.row.untyped_storage().data_ptr()
    for name, view in views.items():
        if view.untyped_storage().data_ptr() != memory:
            raise ModelError(
                f"the step assigns to the data of parameter {name.removeprefix('model.')!r}, which is a view of a row "
                "and would not change there; write into it: parameter.data.copy_(...)"
            )


def sums_of_frozen(group: LearnerGroup, learner: Learner) -> dict[str, Tensor]:
    """Return a sum of every parameter that the learner shares with others, by name."""
    own = {} if group.num_all == 1 else dict(learner.module.named_parameters())
    # An embedding with max_norm writes the same in every learner.
    embeddings = (m for m in learner.module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag))
    scaled = {id(each.weight) for each in embeddings if each.max_norm is not None}
    shared = {n: p for n, p in group.named_frozen() if own.get(n) is p and id(p) not in scaled}
    return {name: each.detach().sum(dtype=torch.float64) for name, each in shared.items() if not each.is_complex()}


def check_frozen(group: LearnerGroup, learner: Learner, sums: Mapping[str, Tensor]) -> None:
    """Raise if the first task has changed parameters that learners share, of which these are the sums before it."""
    now = sums_of_frozen(group, learner) if sums else {}
    for name, before in sums.items():
        if not torch.equal(now[name].nan_to_num(), before.nan_to_num()):
            raise ModelError(
                f"the step changes parameter {name!r}, which is not trained and so is shared by all learners; "
                "make it a buffer, of which every learner has its own, or use learners=1"
            )
