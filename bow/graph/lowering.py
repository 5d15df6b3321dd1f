"""Lower a trace to operators: number values, link backward to forward operators, remove no-ops."""

import dataclasses
import operator as python_operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, fx

from bow.errors import CaptureError
from bow.graph import kinds
from bow.graph.operator import Argument, Operator, Ref, TensorSpec
from bow.graph.tracing import Trace, origin_of

_LITERALS = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Lowering:
    """The operators and values of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.operators: list[Operator] = []
        self.values: dict[int, TensorSpec] = {}
        self.lazy: set[int] = set()  # values that are conjugated or negated by a bit alone
        self.inputs: list[int] = []
        self.constants: dict[int, Tensor] = {}
        self._made: dict[fx.Node, Any] = {}
        self._makers: dict[int, int] = {}  # sequence number of an autograd node -> index of the operator that made it
        for node in trace.nodes:
            self._lower(node, trace)
        for index, operator in enumerate(self.operators):  # a backward operator has the module of its forward operator
            if operator.forward is not None:
                module = self.operators[operator.forward].module
                self.operators[index] = dataclasses.replace(operator, module=module)

    def value(self, node: fx.Node) -> int:
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
        self._makers.update(dict.fromkeys(origin.made, len(self.operators)))
        operator = Operator(
            index=len(self.operators),
            kind=kind,
            arguments=self._argument(tuple(node.args)),
            keywords={name: self._argument(value) for name, value in node.kwargs.items()},
            results=tuple(_flat(made)),
            phase=origin.phase,
            module=origin.module,
            forward=None if origin.belongs is None else self._makers.get(origin.belongs),
            is_view=kinds.is_view(kind),
            is_random=kinds.is_random(kind),
        )
        self.operators.append(operator)
        return made

    def _argument(self, argument: Any) -> Argument:
        if isinstance(argument, fx.Node):
            return self._made[argument]
        if isinstance(argument, list | tuple):
            return tuple(self._argument(part) for part in argument)
        if isinstance(argument, _LITERALS):
            return argument
        raise _refused_argument(argument)

    def _structure(self, made: Any) -> Any:
        """Return the structure of a result, with values for tensors and None for everything else."""
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
        if tensor.is_conj() or tensor.is_neg():
            self.lazy.add(ref.value)
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
        f"the step cannot be captured because it passes a {type(argument).__name__} to an operator; use torch's "
        "default random number generator and plain numbers"
    )


_SAME = {"alias", "clone", "detach", "lift_fresh", "lift_fresh_copy"}
# Views that may have the strides of their argument but other values: a conjugate is a bit of the tensor.
_OTHER_VALUES = {"as_strided", "_conj", "_neg_view"}
_CONVOLUTION_BACKWARD = "aten.convolution_backward.default"
_HALVES = ((0,), (1, 2))  # input; weight and bias
# oneDNN computes the bias gradient in the pass for the weight: on its own, it takes a whole further pass
# (2.5 ms instead of 0.3 for 16 x 20 x 12 x 12, float32, one thread).


def skip_identities(
    operators: Sequence[Operator], values: Mapping[int, TensorSpec], lazy: Set[int] = frozenset()
) -> tuple[list[Operator], dict[int, int]]:
    """Remove copies, detachments and views whose result has the layout of their argument."""
    # No operator writes to its arguments, so a copy can be replaced by its original. A copy that changes the memory
    # order stays: the kernel of a matrix product depends on it. So does one that resolves a conjugate or a negative.
    kept: list[Operator] = []
    instead: dict[int, int] = {}
    for operator in operators:
        current = operator.with_arguments(lambda ref: Ref(instead.get(ref.value, ref.value)))
        result = next(iter(current.results), None)
        resolves = current.reads and current.reads[0] in lazy and result not in lazy
        if not resolves and _is_identity(current, values):
            assert result is not None
            instead[result] = current.reads[0]
        else:
            kept.append(current)
    return kept, instead


def drop_dead(operators: Sequence[Operator], wanted: Iterable[int]) -> list[Operator]:
    """Remove operators without effect on the wanted values."""
    # Random operators stay: they advance the generator that the others draw from. So do operators without a result:
    # they check something, such as whether a matrix could be inverted.
    live, kept = set(wanted), []
    for operator in reversed(operators):
        checks = all(value is None for value in operator.results)
        if operator.is_random or checks or not live.isdisjoint(operator.results):
            live.update(operator.reads)
            kept.append(operator)
    return kept[::-1]


def renumber(operators: Sequence[Operator]) -> list[Operator]:
    new = {operator.index: position for position, operator in enumerate(operators)}
    return [
        dataclasses.replace(
            operator, index=position, forward=None if operator.forward is None else new.get(operator.forward)
        )
        for position, operator in enumerate(operators)
    ]


def _is_identity(operator: Operator, values: Mapping[int, TensorSpec]) -> bool:
    name = operator.kind.split(".")[1]
    if name not in _SAME and not (operator.is_view and name not in _OTHER_VALUES):
        return False
    if len(operator.results) != 1 or operator.results[0] is None or not operator.reads:
        return False
    return values[operator.reads[0]].lies_like(values[operator.results[0]])


def split_convolution_backward(operators: Sequence[Operator], wanted: Iterable[int]) -> list[Operator]:
    """Split each `convolution_backward` into calls for the gradients of the input and of weight and bias."""
    # The calls differ in `output_mask` alone; unused gradients are not computed. Indices are not unique afterwards
    # (Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018).
    read = {value for operator in operators for value in operator.reads} | set(wanted)
    parts = (
        _split(operator, read) if operator.kind == _CONVOLUTION_BACKWARD else (operator,) for operator in operators
    )
    return [part for group in parts for part in group]


def _split(operator: Operator, read: set[int]) -> Iterator[Operator]:
    *arguments, _ = operator.arguments
    for half in _HALVES:
        results = tuple(v if i in half and v in read else None for i, v in enumerate(operator.results))
        mask = tuple(value is not None for value in results)
        if any(mask):
            yield dataclasses.replace(operator, arguments=(*arguments, mask), results=results)
