"""Build an operator graph incrementally from translated operators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bow.errors import CaptureError
from bow.planning.problem.box import whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.rules.rule import Rules, WholeRule

Shape: TypeAlias = tuple[int, ...]

# Computes a step-invariant tensor from the buffers by name.
ConstantFactory: TypeAlias = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class TensorRef:
    """A tensor of the batch or an operator output, by number."""

    number: int


@dataclass(frozen=True)
class Weight:
    """A parameter by name, optionally viewed in another shape."""

    name: str
    view: Shape | None = None


@dataclass(frozen=True)
class Constant:
    """A tensor that is the same in every step."""

    key: Any  # equal keys mean the same tensor
    example: Tensor  # a fake tensor with its shape and dtype
    make: ConstantFactory  # picklable


Value: TypeAlias = TensorRef | Weight | Constant


def filled(example: Tensor, value: float) -> Constant:
    shape, dtype = tuple(example.shape), example.dtype
    return Constant((shape, dtype, value), example, partial(_full, shape, dtype, value))


def _full(shape: Sequence[int], dtype: torch.dtype, value: float, buffers: Mapping[str, Tensor]) -> Tensor:
    return torch.full(tuple(shape), value, dtype=dtype)


class GraphBuilder:
    """Builder of an operator graph."""

    def __init__(self, model: nn.Module, batch: Sequence[Tensor], requires_grad: bool = False) -> None:
        self.name = ""  # name of the next operators; duplicates get a suffix
        self.constants: dict[int, ConstantFactory] = {}
        self.dtypes: dict[int, torch.dtype] = {}
        self._parameters = dict(model.named_parameters())
        self._operators: list[PlanOperator] = []
        self._tensors: dict[int, TensorShape] = {}
        self._weights: dict[str, TensorShape] = {}
        self._named: dict[str, int] = {}
        self._layers: dict[str, str] = {}
        self._constants: dict[Any, int] = {}
        self.batch = [self._tensor(tuple(t.shape), t.dtype, requires_grad and t.is_floating_point()) for t in batch]

    def shape(self, value: Value) -> Shape:
        if isinstance(value, TensorRef):
            return self._tensors[value.number].shape
        if isinstance(value, Weight):
            return value.view or tuple(self._parameters[value.name].shape)
        return tuple(value.example.shape)

    def dtype(self, value: Value) -> torch.dtype:
        if isinstance(value, TensorRef):
            return self.dtypes[value.number]
        return self._parameters[value.name].dtype if isinstance(value, Weight) else value.example.dtype

    def add(
        self,
        kind: str,
        operands: Sequence[Value],
        outputs: Sequence[tuple[Shape, torch.dtype]],
        attributes: Mapping[str, Any] | None = None,
        flops: float = 0.0,
    ) -> tuple[TensorRef, ...]:
        weights = [value for value in operands if isinstance(value, Weight)]
        for weight in weights:
            self._read(weight)
        inputs = [self._number(value) for value in operands if not isinstance(value, Weight)]
        trains = any(self._parameters[weight.name].requires_grad for weight in weights)
        flows = trains or any(self._tensors[number].differentiable for number in inputs)
        made = [
            self._tensor(shape, dtype, flows and (dtype.is_floating_point or dtype.is_complex))
            for shape, dtype in outputs
        ]
        order = ["weight" if isinstance(value, Weight) else "input" for value in operands]
        name = self.name or kind
        count = self._named[name] = self._named.get(name, -1) + 1
        name = f"{name}@{count}" if count else name
        self._operators.append(
            PlanOperator(
                name,
                kind,
                tuple(inputs),
                tuple(made),
                tuple(weight.name for weight in weights),
                {**(attributes or {}), **({} if order == sorted(order) else {"operands": order})},
                float(flops),
                self._layers.setdefault(weights[0].name, name) if weights else name,
            )
        )
        return tuple(map(TensorRef, made))

    def add_single_output(
        self,
        kind: str,
        operands: Sequence[Value],
        shape: Sequence[int],
        attributes: Mapping[str, Any] | None = None,
        flops: float = 0.0,
    ) -> TensorRef:
        """Add an operator with one output, of the dtype of its first operand."""
        return self.add(kind, operands, [(tuple(shape), self.dtype(operands[0]))], attributes, flops)[0]

    def add_pointwise(self, value: Value, function: str) -> TensorRef:
        attributes = {"function": function, "arguments": [{"operand": 0}], "keywords": {}}
        return self.add_single_output("pointwise", [value], self.shape(value), attributes)

    def add_detach(self, value: TensorRef | Weight) -> TensorRef:
        """Add a detach: the same tensor without gradient flow."""
        made = self.add_pointwise(value, "aten.detach.default")
        self._tensors[made.number] = replace(self._tensors[made.number], differentiable=False)
        return made

    def build(self, loss: TensorRef) -> OperatorGraph:
        """Return the graph of the operators that the loss depends on or that update running statistics."""
        wanted, kept = {loss.number}, []
        for operator in reversed(self._operators):
            if wanted.intersection(operator.outputs) or operator.attributes.get("running"):
                kept.append(operator)
                wanted.update(operator.inputs)
        operators = tuple(reversed(kept))
        numbers = {*self.batch, *(n for each in operators for n in (*each.inputs, *each.outputs))}
        self.constants = {number: make for number, make in self.constants.items() if number in numbers}
        read = {name for operator in operators for name in operator.weights}
        return OperatorGraph(
            operators,
            {number: self._tensors[number] for number in sorted(numbers)},
            (*self.batch, *self.constants),
            {name: shape for name, shape in self._weights.items() if name in read},
            loss.number,
        )

    def _tensor(self, shape: Shape, dtype: torch.dtype, is_differentiable: bool) -> int:
        number = len(self._tensors)
        self._tensors[number] = TensorShape(shape, dtype.itemsize, is_differentiable)
        self.dtypes[number] = dtype
        return number

    def _number(self, value: Value) -> int:
        """Return the number of an operand; constants are added to the batch's tensors."""
        if isinstance(value, TensorRef):
            return value.number
        assert isinstance(value, Constant)
        if value.key not in self._constants:
            number = self._tensor(tuple(value.example.shape), value.example.dtype, is_differentiable=False)
            self._constants[value.key] = number
            self.constants[number] = value.make
        return self._constants[value.key]

    def _read(self, weight: Weight) -> None:
        parameter = self._parameters[weight.name]
        shape = TensorShape(weight.view or tuple(parameter.shape), parameter.dtype.itemsize, parameter.requires_grad)
        if self._weights.setdefault(weight.name, shape) != shape:
            raise CaptureError(
                f"parameter {weight.name!r} is read by LSTM cells and by something else, which needs another shape; "
                "give each a parameter of its own"
            )


NO_SAMPLE_DIM = -1  # no sample dimension


def annotate_sample_dims(graph: OperatorGraph, batch: Sequence[int], rules: Rules) -> OperatorGraph:
    """Return the graph with the attribute `sample` on each operator: the sample dimension of its output."""
    # An output dimension is the sample dimension if, by the rule, half of it needs only part of an input's samples.
    # For an operator without a rule, it is the input's sample dimension if the output has the same size there.
    dims = {number: 0 for number in batch if graph.tensors[number].shape}
    found = []
    for operator in graph.operators:
        sample = _sample_dim(graph, operator, dims, rules)
        if sample != NO_SAMPLE_DIM:
            rank = len(graph.output_shape(operator))
            dims.update({each: sample for each in operator.outputs if len(graph.tensors[each].shape) == rank})
        found.append(replace(operator, attributes={**operator.attributes, "sample": sample}))
    return replace(graph, operators=tuple(found))


def _sample_dim(graph: OperatorGraph, operator: PlanOperator, dims: dict[int, int], rules: Rules) -> int:
    rule, shape = rules.of(operator), graph.output_shape(operator)
    if isinstance(rule, WholeRule):
        for number in operator.inputs:
            dim = dims.get(number, NO_SAMPLE_DIM)
            if 0 <= dim < len(shape) and shape[dim] == graph.tensors[number].shape[dim]:
                return dim
        return NO_SAMPLE_DIM
    for dim, size in enumerate(shape):
        if size > 1:
            box = (*whole(shape)[:dim], (0, size // 2), *whole(shape)[dim + 1 :])
            for number, needed in zip(operator.inputs, rule.input_boxes(operator, graph, box), strict=True):
                of = dims.get(number, NO_SAMPLE_DIM)
                if of != NO_SAMPLE_DIM and needed is not None and needed[of] != (0, graph.tensors[number].shape[of]):
                    return dim
    return NO_SAMPLE_DIM
