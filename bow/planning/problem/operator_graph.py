"""The operator graph of a model's forward pass, as plain data."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

FORMAT = "bow operator graph"
VERSION = 1


@dataclass(frozen=True)
class TensorShape:
    """Shape, element size and differentiability of a tensor."""

    shape: tuple[int, ...]
    itemsize: int = 4  # bytes per element
    differentiable: bool = True  # whether a gradient flows through it; False for token indices and the like

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class PlanOperator:
    """A forward operator, together with its backward pass and the update of its weights."""

    name: str  # unique, such as `features.0`
    kind: str  # selects its rule, such as `conv2d`
    inputs: tuple[int, ...]  # numbers of the tensors it reads: from the batch or from earlier operators
    outputs: tuple[int, ...]  # numbers of the tensors it produces; splits refer to the first, rules derive the others
    weights: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)  # parameters such as strides: numbers, strings, lists
    flops: float = 0.0  # of the forward pass of the whole operator
    layer: str = ""  # name of the first operator with the same weights, such as the first step of an unrolled LSTM


@dataclass(frozen=True)
class OperatorGraph:
    """The forward pass of a training step up to the loss, at the granularity of splits."""

    operators: tuple[PlanOperator, ...]  # in topological order
    tensors: Mapping[int, TensorShape]  # by number
    batch: tuple[int, ...]  # numbers of the batch's tensors
    weights: Mapping[str, TensorShape]
    loss: int  # number of the loss, a scalar produced by the last operator

    @cached_property
    def makers(self) -> dict[int, tuple[int, int]]:
        """Position of the producing operator and index among its outputs, by tensor."""
        return {
            tensor: (index, place)
            for index, operator in enumerate(self.operators)
            for place, tensor in enumerate(operator.outputs)
        }

    def sources(self, operator: PlanOperator) -> list[int]:
        """Return the positions of the operators that produce its inputs, in the order of its inputs."""
        return [self.makers[tensor][0] for tensor in operator.inputs if tensor in self.makers]

    def output_shape(self, operator: PlanOperator) -> tuple[int, ...]:
        """Return the shape of the operator's first output, which splits refer to."""
        return self.tensors[operator.outputs[0]].shape

    @cached_property
    def hash(self) -> str:
        """Fingerprint that ties a partition to its graph."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})
