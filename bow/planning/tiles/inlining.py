"""Inline regions of `torch.no_grad()`, which `torch.export` wraps in an operator."""

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

_NO_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
# Operators that return their argument itself if they change nothing.
_MAY_RETURN_SELF = ("to", "contiguous", "type_as", "dropout")


@contextlib.contextmanager
def disabled_autocast_left_out() -> Iterator[None]:
    """Skip regions of disabled autocast where it is disabled anyway: `torch.export` loses no_grad inside them."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    def entered(self: Any) -> Any:
        is_left_out = not self._enabled and not torch.is_autocast_enabled(self.device)
        vars(self).setdefault("_left_out", []).append(is_left_out)
        return self if is_left_out else enter(self)  # type: ignore[no-untyped-call]

    def left(self: Any, *error: Any) -> Any:
        return False if vars(self).get("_left_out") and self._left_out.pop() else leave(self, *error)

    torch.autocast.__enter__, torch.autocast.__exit__ = entered, left  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__, torch.autocast.__exit__ = enter, leave  # type: ignore[method-assign]


def inline_regions(module: fx.GraphModule, refuse: Callable[[str], Exception]) -> None:
    """Inline the regions of a graph in place; autocast stays wrapped."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not _NO_GRAD or node.args[0]:
            continue
        body, operands = node.args[1], node.args[2:]
        region = getattr(module, body.target)
        inline_regions(region, refuse)
        _refuse_changes(region.graph, refuse)
        inner = list(region.graph.nodes)
        copies = dict(zip((each for each in inner if each.op == "placeholder"), operands, strict=True))
        with graph.inserting_before(node):
            for each in inner:
                if each.op == "call_function":
                    copies[each] = graph.node_copy(each, copies.__getitem__)
                elif each.op == "get_attr" and each.users:  # the body of a region that stays wrapped
                    name = f"{body.target}_{each.target}"
                    setattr(module, name, getattr(region, each.target))
                    copies[each] = graph.get_attr(name)
            made = inner[-1].args[0]
            outputs = [_detached(graph, each, copies) for each in made]
        for user in list(node.users):
            user.replace_all_uses_with(outputs[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def _detached(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """Detach an output of a region, unless it is one of the region's operands."""
    example = node.meta["val"]
    same = node
    while same.op == "call_function" and _returns_self(same):
        same = same.args[0]  # type: ignore[assignment]
    if same.op == "placeholder" or not isinstance(example, Tensor) or not example.is_floating_point():
        return copies[same]
    made = graph.call_function(torch.ops.aten.detach.default, (copies[node],))
    made.meta = {**node.meta}
    return made


def _returns_self(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):  # an output of an operator with several
        return False
    if target._schema.name.removeprefix("aten::") not in _MAY_RETURN_SELF or True in node.args[2:4]:
        return False
    given, made = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return (given.dtype, given.device, given.stride()) == (made.dtype, made.device, made.stride())


def _refuse_changes(graph: fx.Graph, refuse: Callable[[str], Exception]) -> None:
    """Raise if a region changes one of its operands in place: autograd would ignore the change."""
    outside = {node for node in graph.nodes if node.op == "placeholder" and node.meta["val"].is_floating_point()}
    for node in graph.nodes:
        target: Any = node.target
        if node.op != "call_function" or not node.args:
            continue
        if target is operator.getitem and node.args[0] in outside:  # a part, such as of `chunk`
            outside.add(node)
        if not isinstance(target, torch._ops.OpOverload):
            continue
        if target._schema.is_mutable and node.args[0] in outside:
            raise refuse(f"changes a tensor in place under torch.no_grad() ({target})")
        if node.args[0] in outside and (any(r.alias_info for r in target._schema.returns) or _returns_self(node)):
            outside.add(node)
