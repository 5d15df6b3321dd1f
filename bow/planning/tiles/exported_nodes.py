"""Nodes of an exported program: which are constants, which change something in place, and how a step is refused."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from bow.graph.refusal import REMEDY as REMEDY
from bow.graph.refusal import refusal as _refusal
from bow.graph.refusal import refused as _refused
from bow.planning.tiles.encoding import function
from bow.planning.tiles.graph_builder import Constant, Value
from bow.planning.tiles.translations import Exported

_INSTEAD = "train without a partition"

refusal = functools.partial(_refusal, instead=_INSTEAD)  # The error for a step that cannot be captured

refused = functools.partial(_refused, instead=_INSTEAD)  # The error for a step during which torch raised something


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


_ADDITIONS = ("aten.add_.Tensor", "aten.add_.Scalar")


class Mutations:
    """Finds out what an exported step changes in place."""

    def __init__(self, program: ExportedProgram, model: str) -> None:
        self._model = model
        self._nodes = list(program.graph.nodes)
        placeholders = [node for node in self._nodes if node.op == "placeholder"]
        specs = zip(placeholders, program.graph_signature.input_specs, strict=True)
        self._buffers = {
            node: (spec.target or "").removeprefix("model.") for node, spec in specs if spec.kind is InputKind.BUFFER
        }

    def functional_name(self, node: fx.Node) -> str | None:
        """The name of the operator that makes what a node writes, without writing it; None: the node only counts."""
        target: Any = node.target
        if not target._schema.is_mutable:
            return str(target)
        if self.is_counter(node):
            return None
        namespace, name, overload = str(target).split(".")
        written = node.args[0] if node.args else None
        functional = getattr(getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None), overload, None)
        if functional is None or not name.endswith("_") or not isinstance(written, fx.Node):
            raise refusal(
                self._model, f"calls {target}, which changes its arguments", "use one that makes a new tensor"
            )
        aliases = _aliases(written)
        if aliases[0].op == "placeholder":
            what = f"changes {aliases[0].name} in place ({target})"
            raise refusal(self._model, what, "change nothing but counters")
        if any(user is not node and node < user for alias in aliases for user in alias.users):
            what = f"changes a tensor in place ({target}) that is used again elsewhere"
            raise refusal(self._model, what, "change a copy")
        return f"{namespace}.{name.removesuffix('_')}.{overload}"

    def is_counter(self, node: fx.Node) -> bool:
        """Whether a node adds a whole number to a buffer that nobody reads: as batch norm counts its batches."""
        if str(node.target) not in _ADDITIONS or not isinstance(node.args[1], int):
            return False
        buffer = _counted(node)
        if buffer not in self._buffers or buffer.meta["val"].dim() or buffer.meta["val"].is_floating_point():
            return False
        return all(str(user.target) in _ADDITIONS for user in (*buffer.users, *node.users))

    def counters(self) -> dict[str, int]:
        """By buffer that counts: by how much it grows in a step."""
        counts: dict[str, int] = {}
        for node in self._nodes:
            if node.op == "call_function" and self.is_counter(node):
                name = self._buffers[_counted(node)]
                counts[name] = counts.get(name, 0) + node.args[1]
        return counts


def _counted(node: fx.Node) -> fx.Node:
    """What a chain of additions in place began with."""
    while str(node.target) in _ADDITIONS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_view(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not target._schema.is_mutable and any(each.alias_info for each in target._schema.returns)


def _aliases(node: fx.Node) -> list[fx.Node]:
    """All nodes that may look at the same memory, first the one that it belongs to."""
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    found = [node]
    for each in found:
        found += [user for user in each.users if _is_view(user)]
    return found
