"""Rows of a matrix as independent models, each with its own weights, buffers, frozen parameters and optimizer."""

import copy
import dataclasses
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_leaves

from bow.errors import CheckpointError, ModelError, SettingError
from bow.replicas import (
    LearnerGroup,
    OptimizerFactory,
    buffer_state,
    copy_buffers,
    extra_state,
    load_buffers,
    load_extra_state,
)
from bow.replicas.buffers import buffer_slots
from bow.replicas.group import Learner
from bow.replicas.layout import MEMORY_ORDER, ParameterLayout, other_order
from bow.replicas.matrix import ReplicaMatrix
from bow.replicas.model import replicate
from bow.replicas.optimizer import OptimizerRows, make_optimizer, on_cpu
from bow.seeds import derive_seed

# Attributes of modules whose values are theirs, or change.
NOT_FIXED = ("training", "_parameters", "_buffers", "_modules")


class MemberOptimizers:
    """An optimizer for each row, with the interface of `OptimizerRows`."""

    def __init__(self, layout: ParameterLayout, matrix: ReplicaMatrix) -> None:
        self._layout = layout
        self._matrix = matrix
        self._rows: list[OptimizerRows] = []

    @property
    def optimizer(self) -> Optimizer:
        return self._rows[0].optimizer

    @property
    def by_learner(self) -> list[Optimizer]:
        return [row.optimizer for row in self._rows]

    @property
    def states(self) -> list[dict[str, Any]]:
        return [state for row in self._rows for state in row.states]

    def place(self, row: int, optimizer: Optimizer) -> None:
        made = OptimizerRows(optimizer, self._layout, self._matrix, first=row)
        made.add_learner()
        self._rows[row : row + 1] = [made]

    def step(self, stepping: Sequence[bool] | None = None) -> None:
        for row, steps in enumerate([True] * len(self._rows) if stepping is None else stepping):
            if steps:
                self._rows[row].step()

    def reset(self, learner: int) -> None:
        self._rows[learner].reset(0)

    def add_learner(self) -> None:
        """Do nothing: a row gets its optimizer when a member is placed on it."""

    def state_of(self, learner: int) -> dict[str, Any]:
        row = self._rows[learner]
        return {"settings": row.settings, "states": row.state_of(0)}

    def load(self, learner: int, state: dict[str, Any]) -> None:
        self._rows[learner].load(state["settings"], [copy.deepcopy(state["states"])])


class MemberGroup(LearnerGroup):
    """Rows for members of the template's kind, which are placed on them and removed from them."""

    def __init__(
        self,
        template: nn.Module,
        optimizer: OptimizerFactory,
        rows: int,
        device: torch.device,
        memory_format: str | None = None,
    ) -> None:
        super().__init__(template, optimizer, learners=rows, device=device, memory_format=memory_format)
        self._groups = [[slot.names for slot in group] for group in self.layout.group_slots]
        self._fixed = fixed_values(template)
        self.optimizer: MemberOptimizers = MemberOptimizers(self.layout, self.matrix)  # type: ignore[assignment]
        for row, learner in enumerate(self.learners):
            module = replicate(template, self.layout, learner.row, device)  # with its own frozen parameters
            self.learners[row] = Learner(module if template.training else module.train(), learner.row, learner.gradient)
            self.optimizer.place(row, make_optimizer(optimizer, template))
        self.seeds = [0] * rows
        self.own_rounds = [0] * rows  # completed, by row

    def task_seed(self, seed: int, round_index: int, position: int) -> int:
        """Return the seed of a row's next learning task from its member's seed and round, ignoring those given."""
        return derive_seed(self.seeds[position], self.own_rounds[position], 0)

    @torch.no_grad()
    def place(self, row: int, model: nn.Module, optimizer: OptimizerFactory, seed: int) -> None:
        self._check_alike(model)
        self.layout.fill(self.matrix.weights_of(row).zero_(), model)
        module = self.learners[row].module
        buffers = {name: buffer.to(self.device) for name, buffer in buffer_state(model).items()}
        for name, (owner, key) in buffer_slots(module):
            if name not in buffers:
                owner._buffers[key] = None  # the previous member may have set it
        load_buffers(module, buffers)
        load_extra_state(module, extra_state(model))
        for name, frozen in model.named_parameters():
            if name not in self.layout.names:
                module.get_parameter(name).data.copy_(frozen)
        made = make_optimizer(optimizer, model)
        layout = ParameterLayout(model, [group["params"] for group in made.param_groups])
        if [[slot.names for slot in group] for group in layout.group_slots] != self._groups:
            raise SettingError("the optimizers of members must have equal parameter groups; use a sweep for each kind")
        self.optimizer.place(row, made)
        self.seeds[row], self.own_rounds[row] = seed, 0

    def state_of(self, row: int) -> dict[str, Any]:
        named = self.learners[row].module.named_parameters()
        frozen = {n: on_cpu(p) for n, p in named if n not in self.layout.names}
        return {**self._state_of(row), "frozen": frozen, MEMORY_ORDER: self.layout.memory_order}

    @torch.no_grad()
    def load_state_of(self, row: int, state: dict[str, Any]) -> None:
        if (problem := other_order(state, self.layout)) is not None:
            raise CheckpointError(problem)
        module = self.learners[row].module
        self.matrix.weights_of(row).copy_(state["weights"])
        load_buffers(module, state["buffers"])
        load_extra_state(module, state["extra"])
        for name, frozen in state["frozen"].items():
            module.get_parameter(name).data.copy_(frozen)
        self.optimizer.load(row, state["optimizer"])

    def new_central(self) -> nn.Module:
        return replicate(self.template, self.layout, torch.zeros_like(self.matrix.z), self.device).eval()

    @torch.no_grad()
    def central_of(self, row: int, central: nn.Module | None = None) -> nn.Module:
        """Return a row's model in evaluation mode; valid until another row is requested."""
        central = self._central if central is None else central
        module = self.learners[row].module
        own = dict(module.named_parameters())
        for name, parameter in central.named_parameters():
            parameter.data.copy_(own[name])
        copy_buffers(module, central)
        return central

    def export_of(self, row: int) -> nn.Module:
        return self._exported(self.central_of(row))

    def _check_alike(self, model: nn.Module) -> None:
        shapes = {name: (tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()}
        own = {name: (tuple(p.shape), p.requires_grad) for name, p in self.template.named_parameters()}
        if type(model) is not type(self.template) or shapes != own:
            raise ModelError(
                "the model factory returns models with different shapes or frozen parameters, which cannot share a "
                "matrix; pass the arguments that change them as Variant(model={...})"
            )
        fixed = fixed_values(model)
        for name in fixed.keys() | self._fixed.keys():
            if not is_same(fixed.get(name), self._fixed.get(name)):
                raise ModelError(
                    f"the model factory returns models that differ in {name}, which members share; keep a tensor in a "
                    "buffer, and pass the arguments that change other values as Variant(model={...})"
                )


def fixed_values(model: nn.Module) -> dict[str, Any]:
    """Return types of modules, and numbers, strings, tensors and arrays in their attributes, by a name for messages."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        where = f" of module {path!r}" if path else ""
        found[f"the type{where}"] = type(module).__qualname__
        for name, value in vars(module).items():
            if name not in NOT_FIXED and _is_fixed(value, own):
                found[f"attribute {name!r}{where}"] = value
    return found


def _is_fixed(value: Any, own: Container[int]) -> bool:
    leaves = tree_leaves(value)
    kinds = (bool, int, float, str, type(None), Tensor, np.ndarray, np.generic)
    return bool(leaves) and all(isinstance(leaf, kinds) and id(leaf) not in own for leaf in leaves)


def is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return all(is_same(getattr(one, each.name), getattr(other, each.name)) for each in dataclasses.fields(one))
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if not one.dtype.hasobject:
            return bool(one.tobytes() == other.tobytes())
        one, other = one.tolist(), other.tolist()
    if isinstance(one, Tensor) and one.layout != torch.strided:  # sparse ones cannot be compared
        (_, one, *_), (_, other, *_) = one.__reduce_ex__(2), other.__reduce_ex__(2)  # type: ignore[no-untyped-call]
    if isinstance(one, (tuple, list, deque, Mapping)):
        (leaves, kind), (others, other_kind) = tree_flatten(one), tree_flatten(other)
        if not kind.is_leaf():  # as is one of a class that torch does not know
            if kind != other_kind:  # those of `defaultdict` hold functions, which may be equal
                return _is_pickled_alike(one, other)
            return all(is_same(a, b) for a, b in zip(leaves, others, strict=True))
    if isinstance(one, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype and one.layout == other.layout
        return alike and bool(((one == other) | ((one != one) & (other != other))).all())
    try:
        return bool(one == other) or _is_pickled_alike(one, other)
    except Exception:  # they cannot be compared
        return False


def _is_pickled_alike(one: Any, other: Any) -> bool:
    try:
        return bool(cloudpickle.dumps(one) == cloudpickle.dumps(other))
    except Exception:  # not picklable: treat as different
        return False
