"""Tensors that are the same in every step: zeros to start from, masks, buffers that nothing changes."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from bow.planning.tiles.builder import Constant, Value
from bow.planning.tiles.encoding import function
from bow.planning.tiles.translations import Exported

_FILLED = {
    "new_zeros": 0.0,
    "zeros_like": 0.0,
    "new_ones": 1.0,
    "ones_like": 1.0,
}
"""What makes a tensor of the shape of another, whatever the other's values."""


def constant_of(node: fx.Node, exported: Exported) -> Constant | None:
    """The constant that a node makes; None: what it makes depends on the batch, on weights, or on chance."""
    example = node.meta["val"]
    if not isinstance(example, Tensor):
        return None
    name = exported.function.split(".")[1]
    if name in _FILLED:
        return _filled(example, _FILLED[name])
    if name in ("new_full", "full_like"):
        return _filled(example, exported["fill_value"])
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if not all(isinstance(value, Constant) for value in exported.operands):
        return None
    by_place = [_recipe(value) for key, value in exported.arguments.items() if key not in exported.keywords]
    by_name = {key: _recipe(value) for key, value in exported.arguments.items() if key in exported.keywords}
    return Constant((node.name,), example, functools.partial(_computed, exported.function, by_place, by_name))


def buffer(name: str, buffers: Mapping[str, Tensor]) -> Tensor:
    """A buffer of the model."""
    return buffers[name]


def held(tensor: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
    """A tensor that the model's code holds."""
    return tensor


def _filled(example: Tensor, value: float) -> Constant:
    shape, dtype = tuple(example.shape), example.dtype
    return Constant((shape, dtype, value), example, functools.partial(_full, shape, dtype, value))


def _full(shape: Sequence[int], dtype: torch.dtype, value: float, buffers: Mapping[str, Tensor]) -> Tensor:
    return torch.full(tuple(shape), value, dtype=dtype)


def _recipe(argument: Any) -> Any:
    """An argument with what makes a tensor in the place of tensors: unlike these, it can be sent to other processes."""
    if isinstance(argument, Value):
        assert isinstance(argument, Constant)
        return argument.make
    return [_recipe(each) for each in argument] if isinstance(argument, (list, tuple)) else argument


def _computed(name: str, by_place: Sequence[Any], by_name: Mapping[str, Any], buffers: Mapping[str, Tensor]) -> Tensor:
    """What an operator makes of constants."""

    def made(argument: Any) -> Any:
        if isinstance(argument, list):
            return [made(each) for each in argument]
        return argument(buffers) if isinstance(argument, functools.partial) else argument

    keywords = {key: made(value) for key, value in by_name.items()}
    tensor: Tensor = function(name)(*(made(value) for value in by_place), **keywords)
    return tensor
