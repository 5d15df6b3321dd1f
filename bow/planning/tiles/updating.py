"""Any torch optimizer that treats every element alike, bound to the parts of weights that a device has."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bow.errors import OptimizerError
from bow.planning.problem.box import whole
from bow.planning.tiles.cells import Cell
from bow.planning.tiles.regions import region
from bow.replicas.optimizer import is_elementwise, make_optimizer

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]


def tile_optimizer(
    factory: OptimizerFactory, model: nn.Module, cells: Mapping[Cell, nn.Parameter], values: Mapping[str, Tensor]
) -> Optimizer:
    """An optimizer of the cells that a device has, with the groups and settings that the user's has."""
    parameters = list(model.parameters())
    optimizer = make_optimizer(factory, parameters)
    if not is_elementwise(optimizer, torch.device("cpu")):
        raise OptimizerError(
            f"optimizer {type(optimizer).__name__} does not treat every element of a weight alike, so that a device "
            "cannot update the part that it has; use an optimizer such as torch.optim.SGD or torch.optim.AdamW"
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    states: dict[nn.Parameter, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        own = []
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for cell, part in cells.items():
                if cell.name == names.get(id(parameter)):
                    own.append(part)
                    states[part] = {key: _cut(each, cell, values[cell.name]) for key, each in state.items()}
        group["params"] = own
    optimizer.state.clear()
    optimizer.state.update({part: state for part, state in states.items() if state})
    return optimizer


def _cut(state: Any, cell: Cell, value: Tensor) -> Any:
    """A cell's part of what an optimizer keeps of a whole parameter."""
    if isinstance(state, Tensor) and state.numel() == value.numel() and state.dim() > 0:
        own = region(state.reshape(value.shape), cell.box, whole(value.shape))
        return own.clone(memory_format=torch.contiguous_format).to(value.device)
    return state.clone() if isinstance(state, Tensor) else copy.copy(state)
