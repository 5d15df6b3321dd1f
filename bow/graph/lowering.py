"""From a trace to operators: values get numbers, `getitem` disappears, backward finds its forward."""

import dataclasses
import operator as python_operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from bow.errors import CaptureError
from bow.graph import kinds
from bow.graph.operator import Argument, Operator, Ref, TensorSpec
from bow.graph.tracing import Origin, Trace, origin_of

_LITERALS = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Lowering:
    """The operators of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.operators: list[Operator] = []
        self.values: dict[int, TensorSpec] = {}
        self.inputs: list[int] = []
        self.constants: dict[int, Tensor] = {}
        self._made: dict[fx.Node, Any] = {}
        self._makers: dict[int, int] = {}  # sequence number of an autograd node -> index of the operator that made it
        for node in trace.nodes:
            self._lower(node, trace)
        self.operators = [self._with_module(operator) for operator in self.operators]

    def value(self, node: fx.Node) -> int:
        """The value that a node of the trace has become."""
        made = self._made[node]
        assert isinstance(made, Ref)
        return made.value

    def _lower(self, node: fx.Node, trace: Trace) -> None:
        if node.op == "placeholder":
            self._made[node] = self._new(node.meta["val"])
            self.inputs.append(self.value(node))
        elif node.op == "get_attr":
            constant = trace.constants[str(node.target)]
            if not isinstance(constant, Tensor):
                raise _refused_argument(constant)
            self._made[node] = self._new(constant)
            self.constants[self.value(node)] = constant.detach()
        elif node.target is python_operator.getitem:
            source, key = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(key, int)
            self._made[node] = self._made[source][key]
        else:
            self._made[node] = self._call(node)

    def _call(self, node: fx.Node) -> Any:
        kind = str(node.target)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CaptureError(f'the step cannot be captured because {kind} is no operator; use engine="eager"')
        made = self._structure(node.meta.get("val"))
        origin = origin_of(node)
        operator = Operator(
            index=len(self.operators),
            kind=kind,
            arguments=self._argument(tuple(node.args)),
            keywords={name: self._argument(value) for name, value in node.kwargs.items()},
            results=tuple(_flat(made)),
            phase=origin.phase,
            module=origin.module,
            forward=self._forward(origin, len(self.operators)),
            is_view=kinds.is_view(kind),
            is_random=kinds.is_random(kind),
        )
        self.operators.append(operator)
        return made

    def _forward(self, origin: Origin, index: int) -> int | None:
        self._makers.update(dict.fromkeys(origin.made, index))
        return self._makers.get(origin.belongs) if origin.belongs is not None else None

    def _with_module(self, operator: Operator) -> Operator:
        """The module of a backward operator is that of its forward operator."""
        if operator.forward is None:
            return operator
        return dataclasses.replace(operator, module=self.operators[operator.forward].module)

    def _argument(self, argument: Any) -> Argument:
        if isinstance(argument, fx.Node):
            return self._made[argument]
        if isinstance(argument, list | tuple):
            return tuple(self._argument(part) for part in argument)
        if isinstance(argument, _LITERALS):
            return argument
        raise _refused_argument(argument)

    def _structure(self, made: Any) -> Any:
        """What a call made, with values for tensors and None for all else."""
        if isinstance(made, Tensor):
            return self._new(made)
        if isinstance(made, list | tuple):
            return tuple(self._structure(part) for part in made)
        return None

    def _new(self, tensor: Tensor) -> Ref:
        if tensor.layout is not torch.strided:
            raise CaptureError(
                f"the step cannot be captured because it makes a tensor of layout {tensor.layout}; "
                'use dense tensors (sparse=False), or use engine="eager"'
            )
        ref = Ref(len(self.values))
        self.values[ref.value] = TensorSpec.of(tensor)
        return ref


def _flat(made: Any) -> Iterator[int | None]:
    if isinstance(made, tuple):
        for part in made:
            yield from _flat(part)
    else:
        yield made.value if isinstance(made, Ref) else None


def _refused_argument(argument: object) -> CaptureError:
    return CaptureError(
        f"the step cannot be captured because it hands a {type(argument).__name__} to an operator; use torch's "
        "default random number generator and plain numbers"
    )
