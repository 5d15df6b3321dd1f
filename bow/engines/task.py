"""The learning task: forward and loss of one learner on one batch, as a module and as a pure function."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.utils._pytree import tree_flatten, tree_unflatten

from bow.data import Batch
from bow.errors import DataError, LossError, SettingError, reason
from bow.replicas import ParameterLayout, tied_buffers

Metrics: TypeAlias = dict[str, Tensor]

# `step(model, batch) -> loss`, or `(loss, {name: scalar})`.
Step: TypeAlias = Callable[[nn.Module, Batch], Tensor | tuple[Tensor, Metrics]]

Loss: TypeAlias = Callable[[Any, Any], Tensor]  # `loss(outputs, targets) -> scalar`


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Step of models that compute their own loss, as Hugging Face's do: `model(**batch).loss`."""
    return loss_of(outputs_of(model, batch))


def outputs_of(model: nn.Module, batch: Batch) -> Any:
    if not isinstance(batch, Mapping):
        raise SettingError(
            f"give loss= (or step=): the batches are {type(batch).__name__}s, and only dictionaries have a default "
            "loss, model(**batch).loss"
        )
    return model(**batch)


def loss_of(outputs: Any) -> Tensor:
    loss: Tensor | None = getattr(outputs, "loss", None)
    if loss is None:
        raise LossError(
            f"give loss= (or step=): the model returns {type(outputs).__name__} without a loss; give it labels, or "
            "write step(model, batch)"
        )
    return loss


def autocast(device: torch.device, precision: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return the context of forward passes: `"bfloat16"` is autocast, `None` the model's own dtype."""
    if precision is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


class LearningTask(nn.Module):
    """A model and its step as one module, so that `functional_call` can swap the model's parameters."""

    def __init__(self, model: nn.Module, step: Step, device: torch.device, precision: str | None) -> None:
        super().__init__()
        self.model = model
        self._step = step
        self._device = device
        self._precision = precision

    def forward(self, batch: Batch) -> tuple[Tensor, Metrics]:
        with autocast(self._device, self._precision):
            result = self._step(self.model, batch)
        loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        check_loss(loss)
        check_metrics(metrics)
        check_is_trained(loss)
        return loss, metrics


def check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor):
        raise LossError(f"the loss must be a scalar tensor, got {type(loss).__name__}; return a torch.Tensor")
    if loss.dim() != 0:
        raise LossError(f"the loss must be a scalar tensor, got one of shape {tuple(loss.shape)}; take its mean or sum")


def check_is_trained(loss: Tensor) -> None:
    if not loss.requires_grad:  # `torch.func` would return zeros
        raise LossError("the loss does not depend on the model's parameters; compute it from model outputs")


def check_metrics(metrics: object) -> None:
    if not isinstance(metrics, dict):
        raise LossError(
            f"a step returns loss, or (loss, {{name: scalar}}), got {type(metrics).__name__} for the latter"
        )
    for name, value in metrics.items():
        if not isinstance(value, Tensor) or value.dim() != 0:
            got = f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise LossError(
                f"the step's {name!r} must be a scalar tensor, got {got}; return a torch.Tensor of its mean"
            )


def out_of_range(error: Exception) -> DataError:
    return DataError(
        f"an index is out of range in the learning task ({reason(error)}); if it is a label or token, check it "
        "against the number of classes of the model"
    )


class Learned(NamedTuple):
    """Results of a learning task besides its gradient."""

    loss: Tensor
    metrics: Metrics


def losses_dtype(z: Tensor) -> torch.dtype:
    """Return the type of a round's losses: a step of a bfloat16 model may compute its loss in float32."""
    return torch.promote_types(z.dtype, torch.float32)


def collected(learned: Sequence[Learned | None], z: Tensor) -> tuple[Tensor, Metrics]:
    """Stack the losses and metrics of a round's tasks; NaN where there was none."""
    dtype = losses_dtype(z)
    nan = torch.full((), torch.nan, dtype=dtype, device=z.device)
    losses = torch.stack([nan if each is None else each.loss.to(dtype) for each in learned])
    metrics = [{} if each is None else each.metrics for each in learned]
    names = {name: value for each in metrics for name, value in each.items()}  # a batch need not have all of them
    if names:
        nan = torch.full_like(next(iter(names.values())), torch.nan, dtype=torch.float32)
    return losses, {name: torch.stack([m.get(name, nan).to(torch.float32) for m in metrics]) for name in names}


class TaskResult(NamedTuple):
    """Results of the pure learning task for one learner; `vmap` adds a leading learner dimension."""

    gradient: Tensor
    loss: Tensor
    finite: Tensor  # whether loss and gradient are
    metrics: Metrics
    buffers: dict[str, Tensor]


class PureTask:
    """The learning task as a function of tensors alone, for `vmap` and `torch.compile`."""

    __name__ = "learning_task"  # vmap of torch 2.11 asks for it, or for a repr that its compiler cannot trace

    def __init__(self, task: LearningTask, layout: ParameterLayout) -> None:
        self._task = task
        self._layout = layout
        self._ties = tied_buffers(task.model)

    def __call__(
        self, row: Tensor, buffers: dict[str, Tensor], batch: Batch, frozen: Mapping[str, Tensor] | None = None
    ) -> TaskResult:
        """Differentiate the loss with respect to the row; also return the buffers after the forward pass.

        `frozen` are parameters outside of the row, if they are not those of the model.
        """
        gradient, (loss, (metrics, after)) = grad_and_value(self._forward, has_aux=True)(
            row, buffers, batch, frozen or {}
        )
        finite = torch.isfinite(loss) & torch.isfinite(gradient.sum())
        return TaskResult(gradient, loss, finite, metrics, after)

    def _forward(
        self, row: Tensor, buffers: dict[str, Tensor], batch: Batch, frozen: Mapping[str, Tensor]
    ) -> tuple[Tensor, tuple[Metrics, dict[str, Tensor]]]:
        # One dictionary, not two: torch writes the model's assignments to its buffers into it.
        state = {f"model.{name}": view for name, view in (*self._layout.views(row).items(), *frozen.items())}
        own = {name: buffer.clone() for name, buffer in buffers.items() if name not in self._ties}
        state |= {f"model.{name}": own[self._ties.get(name, name)] for name in buffers}
        loss, metrics = functional_call(self._task, state, (batch,), tie_weights=False)
        for name, first in self._ties.items():
            if state[f"model.{name}"] is not state[f"model.{first}"]:
                raise RuntimeError(f"the step assigns to buffer {name!r}, which was the same as {first!r}")
        copied = {name: value.detach().clone() for name, value in metrics.items()}
        return loss, (copied, {name: state[f"model.{name}"].detach() for name in buffers})


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a learning task with `torch.compile`."""
    # Regions are single-threaded: an index out of range inside a compiled region with several threads aborts the
    # process, with one it raises. Large operators (convolution, matrix product) keep their own threads. Guards on
    # torch, Python and bow itself are dropped: those objects do not change, and checking them adds a fifth to a round
    # of a tiny model.
    options: dict[str, str | int | bool | Callable[..., Any]] = {"cpp.threads": 1, "guard_filter_fn": _guards_to_keep}
    # torch (2.13) reuses cached code that was compiled for other instructions, which then computes wrong results; the
    # vector length is part of the cache key and keeps them apart.
    if bits := VECTOR_BITS.get(os.environ.get("ATEN_CPU_CAPABILITY", "")):
        options["cpp.simdlen"] = bits
    made = torch.compile(_with_own_code(function), fullgraph=True, dynamic=False, options=options)

    def run(*given: Any) -> Any:
        forbidden = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
        try:
            return made(*given)
        finally:  # torch (2.13) leaves hooks forbidden in the whole process if compiling `torch.func.grad` fails
            if forbidden is None:
                torch._C._autograd._saved_tensors_hooks_enable()

    return run


VECTOR_BITS = {"default": 1, "avx2": 256, "avx512": 512}

# Prefixes of the names of guards on torch, Python and bow itself.
UNCHANGING = (
    "__import__('torch')",
    "__import__('collections')",
    "G['__import_torch']",
    "G['__import_torch_dot_",
    "G['__import_contextlib']",
    "G['__import_bow_dot_engine",
    "G['__import_bow_dot_replica",
    "G['__builtins_",
    "G['___unnamed_scope",
)


def _guards_to_keep(guards: Sequence[Any]) -> list[bool]:
    def of_the_layout(name: str) -> bool:  # of `PureTask`, and not a user's attribute of that name
        return "._layout" in name and "._task" not in name

    return [not (guard.name.startswith(UNCHANGING) or of_the_layout(guard.name)) for guard in guards]


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    # torch.compile caches by code object and gives up after a few variants: without this, the trainings of one process
    # (a sweep) would use up each other's variants.
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def accumulating(step: Step, parts: int) -> Step:
    return functools.partial(_in_parts, step, parts)


def parts_of(batch: Batch, parts: int) -> Iterator[tuple[Batch, float]]:
    """Yield parts of a batch, as equal as possible, each with its share of the samples."""
    leaves, spec = tree_flatten(batch)
    size = next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 1)
    parts, begin = min(parts, size), 0
    for index in range(parts):
        end = begin + size // parts + (index < size % parts)
        own = [
            leaf[begin:end] if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size else leaf
            for leaf in leaves
        ]
        yield tree_unflatten(own, spec), (end - begin) / size
        begin = end


def _in_parts(step: Step, parts: int, model: nn.Module, batch: Batch) -> tuple[Tensor, Metrics]:
    """Compute a batch part by part, freeing the activations of each; return the loss with the accumulated gradient."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss: Any = 0.0
    sums, shares, whole = dict[str, Tensor](), dict[str, float](), 0.0  # values by name, and the shares that have them
    gradients: list[Tensor | None] = [None] * len(parameters)
    for part, share in parts_of(batch, parts):
        result = step(model, part)
        own, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        check_loss(own)
        check_metrics(metrics)
        check_is_trained(own)
        scaled = own * share
        with torch.autocast(scaled.device.type, enabled=False):  # as where the whole batch is differentiated
            found = torch.autograd.grad(scaled, parameters, allow_unused=True)
        for index, gradient in enumerate(found):
            before = gradients[index]
            if gradient is not None:
                gradients[index] = gradient if before is None else before + gradient
        loss, whole = loss + scaled.detach(), whole + share
        for name, value in metrics.items():
            sums[name] = sums[name] + value.detach() * share if name in sums else value.detach() * share
            shares[name] = shares.get(name, 0.0) + share
    means = {name: total if shares[name] == whole else total / shares[name] for name, total in sums.items()}
    pairs = zip(parameters, gradients, strict=True)
    known = torch.stack([(parameter * gradient).sum() for parameter, gradient in pairs if gradient is not None]).sum()
    return loss + (known - known.detach()), means  # adds 0, whose gradient is the accumulated one
