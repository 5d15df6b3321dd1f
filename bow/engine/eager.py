"""The oracle: learners one after another, by ordinary autograd."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_map

from bow.engine.base import Batches, Engine, Outcome, Stacked, TaskSettings
from bow.engine.random import task_random
from bow.engine.task import Batch, LearningTask, Metrics, PureTask, TaskResult, compiled
from bow.errors import BowError, DataError, LossError, ModelError, reason
from bow.replica import Learner, LearnerGroup, buffer_state, load_buffers
from bow.seeds import derive_seed
from bow.sync import Synchroniser


class Eager(Engine):
    """Runs any module with any optimizer; all other engines must agree with it.

    Each learner's row is split and viewed as its parameters, applied with `torch.func.functional_call`, and the
    loss is differentiated in the row: the gradient arrives contiguous and equals ordinary autograd bit for bit.
    """

    name = "eager"

    def __init__(self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> None:
        super().__init__(group, sync, settings)
        self._in_turn = InTurn(group, settings)

    def resized(self) -> None:
        """Wrap the learners anew."""
        self._in_turn.resized()

    def learn(self, batches: Batches) -> Outcome:
        """Run the learning tasks in turn."""
        return self._in_turn.learn(batches, self.round_index)


class InTurn:
    """Runs the learning tasks of a device one after another.

    Args:
        group: the learners.
        settings: what their learning tasks have in common.
    """

    def __init__(self, group: LearnerGroup, settings: TaskSettings) -> None:
        self._group = group
        self._settings = settings
        self.resized()
        self._compiled = self._compile() if settings.compile else None

    def resized(self) -> None:
        """Wrap every learner's module as a learning task."""
        device, settings = self._group.device, self._settings
        modules = [learner.module for learner in self._group.learners]
        self._tasks = [LearningTask(module, settings.step, device, settings.precision) for module in modules]

    def learn(self, batches: Batches, round_index: int) -> Outcome:
        """Run every learning task up to its gradient."""
        group, dtype = self._group, self._group.matrix.z.dtype
        losses = [torch.full((), torch.nan, dtype=dtype, device=group.device)] * len(group)
        metrics: list[Metrics] = [{}] * len(group)
        active = [False] * len(group)
        with task_random(group.device) as generator:
            for index, (learner, task) in enumerate(zip(group.learners, self._tasks, strict=True)):
                batch = batch_of(batches, index)
                if batch is None:
                    learner.gradient.zero_()
                    continue
                generator.manual_seed(derive_seed(self._settings.seed, round_index, index))
                loss, metrics[index] = self._learn_one(learner, task, batch)
                losses[index] = loss.to(dtype)
                active[index] = True
        stacked = torch.stack(losses)
        finite = torch.isfinite(stacked) & torch.isfinite(group.matrix.gradients.sum(1))
        return Outcome(stacked, finite, active, _stack_metrics(metrics))

    def _learn_one(self, learner: Learner, task: LearningTask, batch: Batch) -> tuple[Tensor, Metrics]:
        try:
            if self._compiled is not None:
                return self._learn_compiled(learner, task, batch)
            with torch.enable_grad():
                parameters = {f"model.{name}": view for name, view in self._group.layout.views(learner.row).items()}
                # The views have every name of a tied parameter; looking for ties takes longer than a tiny task.
                loss, metrics = functional_call(task, parameters, (batch,), tie_weights=False)
                if not loss.requires_grad:
                    raise LossError("the loss does not depend on the model's parameters; compute it from model outputs")
                (gradient,) = torch.autograd.grad(loss, learner.row)
        except IndexError as error:
            raise DataError(
                f"an index is out of range in the learning task ({error}); if it is a label or token, check it "
                "against the number of classes of the model"
            ) from error
        except RuntimeError as error:
            if "sparse" not in str(error):
                raise
            raise ModelError(
                f"a layer of the model has sparse gradients, which a row cannot hold ({reason(error)}); "
                "make it with sparse=False"
            ) from error
        learner.gradient.copy_(gradient)
        return loss.detach(), {name: value.detach() for name, value in metrics.items()}

    def _learn_compiled(self, learner: Learner, task: LearningTask, batch: Batch) -> tuple[Tensor, Metrics]:
        assert self._compiled is not None
        try:
            result = self._compiled(learner.row.detach(), buffer_state(learner.module), batch)
        except BowError:
            raise
        except Exception as error:
            self._compiled = None
            learned = self._learn_one(learner, task, batch)  # raises if the error is the user's
            warnings.warn(f"the learning task runs without torch.compile ({reason(error)})", stacklevel=7)
            return learned
        learner.gradient.copy_(result.gradient)
        load_buffers(learner.module, result.buffers)
        return result.loss, result.metrics

    def _compile(self) -> Callable[..., TaskResult]:
        alone = PureTask(self._tasks[0], self._group.layout)

        def run(row: Tensor, buffers: dict[str, Tensor], batch: Batch) -> TaskResult:
            return alone(row, buffers, batch)

        return compiled(run)


def batch_of(batches: Batches, learner: int) -> Batch | None:
    """One learner's batch."""
    if isinstance(batches, Stacked):
        return tree_map(lambda t: t[learner], batches.value)
    return batches[learner]


def _stack_metrics(metrics: list[Metrics]) -> Metrics:
    names = next((m for m in metrics if m), None)
    if names is None:
        return {}
    nan = torch.full_like(next(iter(names.values())), torch.nan, dtype=torch.float32)
    return {name: torch.stack([m.get(name, nan).to(torch.float32) for m in metrics]) for name in names}
