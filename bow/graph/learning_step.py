"""The learning task of one learner as a pure function of tensors, the form that is captured."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy
from torch.utils._pytree import keystr, tree_flatten_with_path

from bow.errors import DataError, LossError, ModelError, reason
from bow.graph.outside import OutsideTensors
from bow.graph.refusal import refusal

Step: TypeAlias = Callable[[nn.Module, Any], Any]
# `step(model, batch) -> loss`, or `(loss, {name: scalar})`.


PROBE = 1e4  # a gradient that no training has, for hooks that bound it or change its size


class StepOutputs(NamedTuple):
    """The results of one learning task."""

    loss: Tensor
    gradients: dict[str, Tensor]  # by parameter name; zeros for a parameter that the loss does not depend on
    buffers: dict[str, Tensor]  # values after the step, by name
    metrics: dict[str, Tensor]


class LearningStep(nn.Module):
    """A copy of the model and its step; parameters and buffers are passed in."""

    # A copy, since Python attributes of the model may change while it is traced; parameters and buffers are shared with
    # the original, and never read.

    def __init__(self, model: nn.Module, step: Step) -> None:
        super().__init__()
        refuse_parameter_hooks(model)
        tensors = [*model.parameters(), *model.buffers()]
        try:
            self.model = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
        except Exception as error:
            raise ModelError(
                f"{type(model).__name__} cannot be copied ({reason(error)}); "
                "remove what copy.deepcopy cannot copy from the module"
            ) from error
        leave_weights(self.model)
        self._step = step
        self.trained = [name for name, p in model.named_parameters() if p.requires_grad]

    def forward(
        self, batch: Any, behind: Callable[[Tensor], None] = lambda loss: None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        result = self._step(self.model, batch)
        loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        _check_scalar(loss, "the loss")
        if not isinstance(metrics, dict):
            raise LossError(f"a step returns loss, or (loss, {{name: scalar}}), got {type(metrics).__name__}")
        for name, value in metrics.items():
            _check_scalar(value, f"the step's {name!r}")
        behind(loss)
        return loss, {name: value.detach() for name, value in metrics.items()}

    def run(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        batch: Any,
        between: Callable[[Tensor], None] = lambda loss: None,
    ) -> StepOutputs:
        outside = OutsideTensors(self._step, self.model)
        leaves = {name: p.detach().requires_grad_(name in self.trained) for name, p in parameters.items()}
        own = {f"model.{name}": buffer.clone() for name, buffer in buffers.items()}
        gradients: list[Tensor] = []
        memory = {name: leaf.untyped_storage()._cdata for name, leaf in leaves.items()}

        def differentiate(loss: Tensor) -> None:
            # Inside the functional call, because activation checkpointing reads these parameters again.
            if not loss.requires_grad:
                raise LossError(
                    "the loss does not depend on the model's parameters; compute it from what the model that the step "
                    "is given returns, without detach() or torch.no_grad()"
                )
            outside.check(loss, [leaves, batch])
            if moved := [name for name, leaf in leaves.items() if leaf.untyped_storage()._cdata != memory[name]]:
                cause = f"assigns to the data of parameter {moved[0]!r}"
                raise refusal(type(self.model).__name__, cause, "keep what changes in a buffer")
            between(loss)
            sources = [leaves[name] for name in self.trained]
            gradients.extend(torch.autograd.grad(loss, sources, materialize_grads=True))

        with torch.enable_grad(), outside.by_name():
            state = {f"model.{name}": leaf for name, leaf in leaves.items()} | own
            loss, metrics = functional_call(self, state, (batch, differentiate))
        after = {name: state[f"model.{name}"].detach() for name in buffers}
        return StepOutputs(loss.detach(), dict(zip(self.trained, gradients, strict=True)), after, metrics)


def leave_weights(model: nn.Module) -> None:
    """Have recurrent layers leave their weights where they are.

    With cuDNN they move them, out of a learner's row, whenever these are other tensors than before, as in every step.
    """
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = _leave  # type: ignore[method-assign]


def _leave() -> None:
    pass


def refuse_scripted(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            which = f"the model's {name!r}" if name else "the model"
            raise ModelError(
                f"{which} is scripted or traced, and such modules cannot be copied; pass the module itself"
            )


def refuse_parameter_hooks(model: nn.Module) -> None:
    """Refuse gradient hooks on parameters: training replaces the parameters by other tensors, without the hooks."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        named = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        if named or _is_hooked_where_gradients_add_up(parameter):
            how = "register_hook or register_post_accumulate_grad_hook" if named else "of its AccumulateGrad node"
            raise ModelError(
                f"parameter {name!r} has a gradient hook ({how}), which the rows that are trained in its place would "
                "not have; remove it, and change the gradient in the module's forward (a parametrization, an autograd "
                "function) or by requires_grad_(False)"
            )


def _is_hooked_where_gradients_add_up(parameter: Any) -> bool:
    """Return whether a gradient comes to the parameter's AccumulateGrad node, whose hooks nothing shows, as another."""
    if parameter.is_meta or is_lazy(parameter) or parameter.layout is not torch.strided:
        return False
    before, parameter.grad = parameter.grad, None
    probe = torch.tensor(PROBE, dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
    try:
        with torch.enable_grad():
            total = parameter.view_as(parameter).sum()
            # A given gradient would import sympy, which takes as long as everything else before the first round.
            torch.autograd.backward(PROBE * (total.real if total.is_complex() else total))
        return parameter.grad is None or not torch.equal(parameter.grad, probe)
    except Exception:  # the hook's own
        return True
    finally:
        parameter.grad = before


def checked_model(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ModelError(f"model must be an nn.Module, got {type(model).__name__}; build the model first")
    module: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    refuse_scripted(module)
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise ModelError("the model has lazy modules without shapes; run one batch through it first")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError("the model has no trainable parameters (0 with requires_grad=True); there is nothing to train")
    return module


def step_from_loss(loss: Callable[[Any, Any], Tensor]) -> Step:
    def step(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return loss(model(inputs), targets)

    return step


def batch_tensors(batch: Any) -> dict[str, Tensor]:
    """Return the leaves of a batch by path, such as `[0]` for the inputs of a pair."""
    leaves, _ = tree_flatten_with_path(batch)
    named = {keystr(path): leaf for path, leaf in leaves}
    for name, leaf in named.items():
        if not isinstance(leaf, Tensor):
            raise DataError(
                f"batch{name} is a {type(leaf).__name__}; a step graph takes tensors only: make it a tensor, "
                "or keep it in the step"
            )
    return named


def _check_scalar(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise LossError(f"{name} must be a scalar tensor, got {type(value).__name__}; return a torch.Tensor")
    if value.dim() != 0:
        raise LossError(f"{name} must be a scalar tensor, got one of shape {tuple(value.shape)}; take its mean or sum")
