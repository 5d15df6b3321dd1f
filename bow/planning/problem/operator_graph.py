"""What is split and placed: the operators of a model's forward pass, as plain data."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from bow.errors import GraphError

FORMAT = "bow operator graph"
VERSION = 1


@dataclass(frozen=True)
class TensorShape:
    """A tensor without its values."""

    shape: tuple[int, ...]
    itemsize: int = 4  # bytes of an element
    differentiable: bool = True  # whether a gradient flows back through it: not for token numbers and the like

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class PlanOperator:
    """A forward operator; its backward operators and the update of its weights belong to it."""

    name: str  # a name that no other operator has, such as `features.0`
    kind: str  # which rule it follows, such as `conv2d`
    inputs: tuple[int, ...]  # the tensors that it reads, by number: of the batch or made by earlier operators
    # the tensors that it makes. A split is one of the first; the rule says what it makes of the others
    outputs: tuple[int, ...]
    weights: tuple[str, ...] = ()
    # what else its rule has to know, such as strides: numbers, strings, and lists of them
    attributes: Mapping[str, Any] = field(default_factory=dict)
    flops: float = 0.0  # of the forward pass, of the whole operator
    # operators of one layer share their weights, as the steps of an unrolled LSTM do; most often its name
    layer: str = ""


@dataclass(frozen=True)
class OperatorGraph:
    """A model's step up to its loss, at the granularity at which it is split."""

    operators: tuple[PlanOperator, ...]  # in an order in which they can run
    tensors: Mapping[int, TensorShape]  # by number
    batch: tuple[int, ...]  # the numbers of the tensors that come with every batch
    weights: Mapping[str, TensorShape]
    loss: int  # the number of the loss, a scalar that the last operator makes

    def __post_init__(self) -> None:
        made, names = set(self.batch), set[str]()
        for operator in self.operators:
            missing = next((tensor for tensor in operator.inputs if tensor not in made), None)
            if missing is not None:
                raise GraphError(f"operator {operator.name!r} reads tensor {missing}, which nothing has made before it")
            if operator.name in names:
                raise GraphError(f"two operators are called {operator.name!r}; give every operator a name of its own")
            made.update(operator.outputs)
            names.add(operator.name)

    @cached_property
    def makers(self) -> dict[int, tuple[int, int]]:
        """By tensor that an operator makes: the operator's position, and the tensor's among its outputs."""
        return {
            tensor: (index, place)
            for index, operator in enumerate(self.operators)
            for place, tensor in enumerate(operator.outputs)
        }

    def sources(self, operator: PlanOperator) -> list[int]:
        """The positions of the operators that make what one reads, in the order of its inputs."""
        return [self.makers[tensor][0] for tensor in operator.inputs if tensor in self.makers]

    def output_shape(self, operator: PlanOperator) -> tuple[int, ...]:
        """The sizes of what an operator's split is a split of."""
        return self.tensors[operator.outputs[0]].shape

    @cached_property
    def hash(self) -> str:
        """A fingerprint: partitions are of one graph."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The graph as JSON, with a version."""
        data = {
            "operators": [{**asdict(operator), "attributes": dict(operator.attributes)} for operator in self.operators],
            "tensors": {str(number): asdict(tensor) for number, tensor in self.tensors.items()},
            "batch": self.batch,
            "weights": {name: asdict(tensor) for name, tensor in self.weights.items()},
            "loss": self.loss,
        }
        return json.dumps({"format": FORMAT, "version": VERSION, **data})
