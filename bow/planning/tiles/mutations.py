"""What a step changes in place: activations, which nobody else may look at, and counters."""

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from bow.planning.tiles.refusing import refusal

_ADDITIONS = ("aten.add_.Tensor", "aten.add_.Scalar")


class Mutations:
    """Finds out what an exported step changes in place.

    Args:
        program: what PyTorch exported.
        model: the model's name, for messages.
    """

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
