"""Bind any torch optimizer to the rows of the replica matrix: its groups' parameters become slices of rows.

Every learner then has its own state and can step alone or sit out, and schedulers work; see docs/design.md for limits.
"""

import contextlib
import copy
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from bow.errors import OptimizerError, reason
from bow.graph.execution import OptimizerFactory as OptimizerFactory
from bow.graph.execution import call_factory, make_with_names
from bow.replicas.layout import ParameterLayout
from bow.replicas.matrix import ReplicaMatrix

# Methods of optimizers that torch excludes from compiled code, importing its compiler to do so.
DYNAMO_DISABLED_METHODS = ("add_param_group", "load_state_dict", "state_dict")

PROBE_SHAPES = ((4, 3), (3,), (2, 2))
PROBE_STEPS = 3
PROBE_LR = 0.01


def make_optimizer(factory: OptimizerFactory, model: nn.Module) -> Optimizer:
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if isinstance(factory, Optimizer):
        raise OptimizerError(
            f"optimizer must be a function that makes one, got a {type(factory).__name__} object; "
            f"pass functools.partial(torch.optim.{type(factory).__name__}, lr=...)"
        )
    with optimizers_alone():
        optimizer = make_with_names(factory, named)
    for group in optimizer.param_groups:  # schedulers write into tensors, which the factory gives to others as well
        group.update({name: value.detach().clone() for name, value in group.items() if isinstance(value, Tensor)})
    if named and named[0][1].is_floating_point():
        _check_finite(optimizer, named[0][1].dtype)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise OptimizerError(
            f"optimizer {type(optimizer).__name__} needs a closure that evaluates the model again, which a learning "
            "task cannot give it; use an optimizer such as torch.optim.SGD or torch.optim.AdamW"
        )
    return optimizer


def _check_finite(optimizer: Optimizer, dtype: torch.dtype) -> None:
    largest, is_known = torch.finfo(dtype).max, type(optimizer).__module__.startswith("torch.optim.")
    for group in optimizer.param_groups:
        for name, value in group.items():
            numbers = value if isinstance(value, (tuple, list)) and name != "params" else (value,)
            for number in numbers:
                single = float(number) if isinstance(number, Tensor) and number.numel() == 1 else number
                most = largest if is_known or name == "lr" else math.inf  # infinity may mean "no limit" in others
                if isinstance(single, float) and not abs(single) <= most:
                    kind = str(dtype).removeprefix("torch.")
                    raise OptimizerError(
                        f"{name}={number} of the optimizer is not finite in {kind}; give another value"
                    )


@contextlib.contextmanager
def optimizers_alone() -> Iterator[None]:
    """Create optimizers and load their state without importing torch's compiler, which takes a second."""
    methods = [getattr(getattr(Optimizer, name), "__wrapped__", None) for name in DYNAMO_DISABLED_METHODS]
    apart = [method for method in methods if method is not None and "torch._dynamo" not in sys.modules]
    for method in apart:  # without compilation, disabling a method leaves it unchanged
        method.__dynamo_disable = method
    try:
        yield
    finally:
        for method in apart:
            vars(method).pop("__dynamo_disable", None)  # another thread may have removed it


class OptimizerRows:
    """One optimizer for all learners of a device, or for those from row `first` on."""

    def __init__(self, optimizer: Optimizer, layout: ParameterLayout, matrix: ReplicaMatrix, first: int = 0) -> None:
        self.optimizer = optimizer
        self._first = first
        self.elementwise = is_elementwise(optimizer, matrix.z.device)
        if not self.elementwise:
            check_parameterwise(optimizer, matrix.z.device)
        self._is_coupled = is_coupled(optimizer, matrix.z.device)
        self._layout = layout
        self._matrix = matrix
        self._initial = [_initial_states(optimizer, group, self.elementwise) for group in optimizer.param_groups]
        self._tensors: list[list[tuple[Tensor, Tensor]]] = []  # by learner: (parameter, its gradient)
        optimizer.state.clear()
        for group in optimizer.param_groups:
            group["params"] = []

    def add_learner(self) -> None:
        learner = len(self._tensors)
        if learner and self._is_coupled:
            raise OptimizerError(
                f"optimizer {type(self.optimizer).__name__} updates a parameter by what all of its parameters have in "
                "common, such as the norm of the whole gradient, so that learners would change each other's steps; use "
                "learners=1, or an optimizer without it (clip_norm= clips each learner's gradient)"
            )
        row = self._first + learner
        weights, gradient = self._matrix.weights_of(row), self._matrix.gradient_of(row)
        bound = []
        for index, group in enumerate(self.optimizer.param_groups):
            for cut in self._cuts(index):
                parameter, grad = cut(weights).requires_grad_(), cut(gradient)
                parameter.grad = grad
                group["params"].append(parameter)
                bound.append((parameter, grad))
        self._tensors.append(bound)
        self.reset(learner)

    def remove_learner(self) -> None:
        gone = {id(parameter): parameter for parameter, _ in self._tensors.pop()}
        for parameter in gone.values():
            self.optimizer.state.pop(parameter, None)
        for group in self.optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in gone]

    def reset(self, learner: int) -> None:
        initial = [state for group in self._initial for state in group]
        for (parameter, _), state in zip(self._tensors[learner], initial, strict=True):
            self.optimizer.state.pop(parameter, None)
            if state:
                self.optimizer.state[parameter] = {key: _padded_copy(value, parameter) for key, value in state.items()}

    @property
    def settings(self) -> list[dict[str, Any]]:
        return [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]

    def state_of(self, learner: int) -> list[dict[str, Any]]:
        """Copies on the CPU, by tensor of the learner."""
        return [
            {name: on_cpu(value) if isinstance(value, Tensor) else copy.deepcopy(value) for name, value in own.items()}
            for own in (self.optimizer.state.get(tensor, {}) for tensor, _ in self._tensors[learner])
        ]

    def load(self, settings: Sequence[dict[str, Any]], states: Sequence[Sequence[dict[str, Any]] | None]) -> None:
        """Restore hyper-parameters and, by learner, the results of `state_of`; None: the learner keeps its state."""
        kept = self.optimizer.state
        by_tensor: dict[int, dict[str, Any]] = {}
        for bound, state in zip(self._tensors, states, strict=True):
            given = [kept.get(tensor, {}) for tensor, _ in bound] if state is None else state
            by_tensor.update({id(tensor): each for (tensor, _), each in zip(bound, given, strict=True)})
        tensors = [tensor for group in self.optimizer.param_groups for tensor in group["params"]]
        number = {id(tensor): index for index, tensor in enumerate(tensors)}
        groups = [
            {**own, "params": [number[id(tensor)] for tensor in group["params"]]}
            for own, group in zip(settings, self.optimizer.param_groups, strict=True)
        ]
        begun = {number[key]: each for key, each in by_tensor.items() if each}
        with optimizers_alone():
            self.optimizer.load_state_dict({"state": begun, "param_groups": groups})

    def copy_state(self, source: int, target: int) -> None:
        state = self.optimizer.state
        for (theirs, _), (own, _) in zip(self._tensors[source], self._tensors[target], strict=True):
            state.pop(own, None)
            if theirs in state:
                state[own] = copy.deepcopy(state[theirs])

    @property
    def by_learner(self) -> list[Optimizer]:
        """The optimizer of each learner: the same for all."""
        return [self.optimizer] * len(self._tensors)

    @property
    def states(self) -> list[dict[str, Any]]:
        """State of each learner's first tensor, which is its whole row if the optimizer is elementwise."""
        state = self.optimizer.state
        return [state[bound[0][0]] for bound in self._tensors]

    def step(self, stepping: Sequence[bool] | None = None) -> None:
        """Update the rows of the learners that are `stepping` (all of them when None)."""
        for together in self._alike([True] * len(self._tensors) if stepping is None else list(stepping)):
            # Set every time: zero_grad(), usual in training loops, would otherwise detach the rows permanently.
            self._set_gradients(together)
            self.optimizer.step()

    def _alike(self, stepping: list[bool]) -> list[list[bool]]:
        """Group learners that can step together: PyTorch's fused SGD creates momentum for all of a call or none."""
        groups = self.optimizer.param_groups
        if not (isinstance(self.optimizer, SGD) and any(group["fused"] and group["momentum"] for group in groups)):
            return [stepping]
        momenta = {id(key): state.get("momentum_buffer") for key, state in self.optimizer.state.items()}
        begun = [any(momenta.get(id(tensor)) is not None for tensor, _ in bound) for bound in self._tensors]
        if len(set(begun)) == 1:
            return [stepping]
        return [[steps and has == one for steps, has in zip(stepping, begun, strict=True)] for one in (True, False)]

    def _set_gradients(self, stepping: Sequence[bool]) -> None:
        for bound, steps in zip(self._tensors, stepping, strict=True):
            for parameter, grad in bound:
                wanted = grad if steps else None
                if parameter.grad is not wanted:
                    parameter.grad = wanted

    def _cuts(self, group: int) -> list[Callable[[Tensor], Tensor]]:
        """Return the functions that slice a row for one optimizer group: as a whole, or by parameter."""
        if self.elementwise:
            return [operator.itemgetter(self._layout.group_slices[group])]
        return [slot.of for slot in self._layout.group_slots[group]]


def num_state_tensors(optimizer: OptimizerFactory) -> int:
    """Return how many tensors of a parameter's size an optimizer keeps for it, by a trial; 0 if that fails."""
    for shape in ((3,), (3, 4)):  # Muon refuses vectors
        parameter = nn.Parameter(torch.ones(shape))
        try:
            with optimizers_alone():
                tried = call_factory(optimizer, [("weight", parameter)])
            if [id(each) for group in tried.param_groups for each in group["params"]] != [id(parameter)]:
                return 0  # it has its own parameters, which must not change
            if is_plain_sgd(tried):  # known optimizers need no step, which imports torch's compiler
                return int(tried.param_groups[0]["momentum"] != 0)
            if is_plain_adam(tried):
                return 2
            parameter.grad = torch.ones(shape)
            tried.step()
        except Exception:  # reported when the optimizer is made for the model
            continue
        return sum(isinstance(value, Tensor) and value.shape == shape for value in tried.state[parameter].values())
    return 0


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """Return whether it is `torch.optim.SGD` with one group and no options but momentum and weight decay."""
    return _is_plain(optimizer, SGD) and not optimizer.param_groups[0]["dampening"]


def is_plain_adam(optimizer: Optimizer) -> bool:
    """Return whether it is `torch.optim.Adam` or `AdamW` with one group and no further options."""
    if not _is_plain(optimizer, Adam, AdamW):
        return False
    only = optimizer.param_groups[0]
    return not (only["amsgrad"] or only["capturable"] or any(isinstance(beta, Tensor) for beta in only["betas"]))


def kind_of(optimizer: OptimizerFactory) -> Literal["sgd", "adam"] | None:
    """Return which plain optimizer a factory makes, by a trial; None: another."""
    made = _tried(optimizer)
    return None if made is None else "sgd" if is_plain_sgd(made) else "adam" if is_plain_adam(made) else None


def is_for_one_learner(optimizer: OptimizerFactory) -> bool:
    """Return whether a factory makes an optimizer that is refused with several learners, by a trial."""
    made = _tried(optimizer)
    return made is not None and is_coupled(made, torch.device("cpu"))


def _tried(optimizer: OptimizerFactory) -> Optimizer | None:
    try:
        with optimizers_alone():
            return call_factory(optimizer, [("weight", nn.Parameter(torch.ones(3)))])
    except Exception:  # reported when the optimizer is made for the model
        return None


def _is_plain(optimizer: Optimizer, *kinds: type[Optimizer]) -> bool:
    if type(optimizer) not in kinds or len(optimizer.param_groups) != 1:
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    only = optimizer.param_groups[0]
    return not only["maximize"] and not only["differentiable"] and not isinstance(only["lr"], Tensor)


def is_elementwise(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether updating one flat tensor equals updating its parts, by a trial on small random tensors."""
    if is_plain_sgd(optimizer) or is_plain_adam(optimizer):
        return True
    weights, gradients = _drawn(device)
    try:
        for group in range(len(optimizer.param_groups)):
            parts = _probe(optimizer, group, weights, gradients)
            flat = _probe(optimizer, group, [_flat(weights)], [[_flat(step)] for step in gradients])
            if not torch.allclose(_flat(parts), flat[0], rtol=1e-9, atol=1e-12):
                return False
    except Exception:
        # Muon rejects vectors, SparseAdam dense gradients, and a third-party optimizer may reject anything.
        return False
    return True


def is_coupled(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether updates of some parameters depend on the gradients of others, by a trial as above."""
    if is_plain_sgd(optimizer) or is_plain_adam(optimizer):
        return False
    weights, gradients = _drawn(device)
    larger = [[100 * gradient for gradient in step] for step in gradients]
    both = [[*step, *more] for step, more in zip(gradients, larger, strict=True)]
    try:
        for group in range(len(optimizer.param_groups)):
            alone, again = (
                _flat([each for own in (gradients, larger) for each in _probe(optimizer, group, weights, own)])
                for _ in range(2)
            )
            together = _flat(_probe(optimizer, group, [*weights, *weights], both))
            if torch.equal(alone, again) and not torch.allclose(alone, together, rtol=1e-9, atol=1e-12):
                return True
    except Exception:
        return False
    return False


def _drawn(device: torch.device) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Draw weights for a trial, and gradients for each of its steps."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> list[Tensor]:
        return [torch.randn(s, generator=generator, dtype=torch.float64).to(device) for s in PROBE_SHAPES]

    return draw(), [draw() for _ in range(PROBE_STEPS)]


def check_parameterwise(optimizer: Optimizer, device: torch.device) -> None:
    """Take one step on zeros of the true shapes; raise if the optimizer fails."""
    for index, group in enumerate(optimizer.param_groups):
        zeros = [torch.zeros_like(p, device=device) for p in group["params"]]
        try:
            _probe(optimizer, index, zeros, [zeros])
        except Exception as error:
            raise OptimizerError(
                f"optimizer {type(optimizer).__name__} fails on this model's parameters ({reason(error)}); "
                "use an optimizer such as torch.optim.SGD or torch.optim.AdamW"
            ) from error


def _probe(optimizer: Optimizer, group: int, weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Return weights after stepping a copy of the optimizer's group on `weights` with the given gradients."""
    parameters = [nn.Parameter(w.clone()) for w in weights]
    template = optimizer.param_groups[group]["params"]
    probe = copy.deepcopy(optimizer, {id(p): p for g in optimizer.param_groups for p in g["params"]})
    states = _initial_states(optimizer, optimizer.param_groups[group], elementwise=True) if template else [{}]
    probe.state.clear()
    probe.param_groups = [{**probe.param_groups[group], "params": parameters}]
    if isinstance(probe.param_groups[0].get("lr"), float):
        probe.param_groups[0]["lr"] = PROBE_LR  # a warm-up may start at 0, with which every optimizer looks elementwise
    for parameter in parameters if states[0] else []:
        probe.state[parameter] = {k: _like(v, parameter) for k, v in states[0].items()}
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        probe.step()
    return [p.detach() for p in parameters]


def _initial_states(optimizer: Optimizer, group: dict[str, Any], elementwise: bool) -> list[dict[str, Any]]:
    """Return the state created by the optimizer's constructor (as by Adagrad), by the tensors that bow will bind."""
    states = [dict(optimizer.state.get(parameter, {})) for parameter in group["params"]]
    if not elementwise:
        return states
    if not states or not states[0]:
        return [{}]
    shaped = {
        key
        for key, value in states[0].items()
        if isinstance(value, Tensor) and value.shape == group["params"][0].shape and value.dim() > 0
    }
    return [{k: _flat([s[k] for s in states]) if k in shaped else v for k, v in states[0].items()}]


def _padded_copy(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return copy.copy(value)
    missing = parameter.numel() - value.numel() if value.dim() == 1 else 0
    return nn.functional.pad(value, (0, missing)).to(parameter.device) if missing else value.clone()


def _like(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return copy.copy(value)
    if value.dim() == 0:
        return value.clone()
    return torch.full_like(parameter, float(value.flatten()[0]))


def on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])
