"""Small graphs, written by hand, and a simulation that starts anew for each proposal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.problem.partition import Partition, Split
from bow.planning.rules import RULES
from bow.planning.simulator.costs import RooflineCosts
from bow.planning.simulator.python_simulator import simulate
from bow.planning.simulator.step_model import StepModel


@dataclass
class Builder:
    """Operators one after the other."""

    operators: list[PlanOperator] = field(default_factory=list)
    tensors: dict[int, TensorShape] = field(default_factory=dict)
    weights: dict[str, TensorShape] = field(default_factory=dict)
    batch: list[int] = field(default_factory=list)

    def bring(self, *shape: int, **fields: Any) -> int:
        self.batch.append(self._tensor(TensorShape(shape, **{"differentiable": False, **fields})))
        return self.batch[-1]

    def add(
        self,
        kind: str,
        inputs: Sequence[int],
        *shapes: tuple[int, ...],
        weights: Sequence[tuple[int, ...]] = (),
        flops: float = 0.0,
        layer: str = "",
        **attributes: Any,
    ) -> tuple[int, ...]:
        name = f"{kind}{len(self.operators)}"
        names = tuple(f"{layer or name}.{number}" for number in range(len(weights)))
        self.weights.update(zip(names, map(TensorShape, weights), strict=True))
        made = tuple(self._tensor(TensorShape(shape)) for shape in shapes)
        operator = PlanOperator(name, kind, tuple(inputs), made, names, attributes, flops, layer or name)
        self.operators.append(operator)
        return made

    def linear(self, x: int, size: int, layer: str = "") -> int:
        *rest, last = self.tensors[x].shape
        flops = 2.0 * last * size
        for each in rest:
            flops *= each
        return self.add("linear", [x], (*rest, size), weights=[(size, last), (size,)], flops=flops, layer=layer)[0]

    def convolution(self, x: int, channels: int, kernel: int, padding: int = 0) -> int:
        samples, inputs, height, width = self.tensors[x].shape
        sizes = [side + 2 * padding - kernel + 1 for side in (height, width)]
        return self.add(
            "conv2d",
            [x],
            (samples, channels, *sizes),
            weights=[(channels, inputs, kernel, kernel), (channels,)],
            flops=2.0 * samples * channels * sizes[0] * sizes[1] * inputs * kernel**2,
            stride=(1, 1),
            padding=(padding, padding),
            dilation=(1, 1),
            groups=1,
        )[0]

    def pool(self, x: int) -> int:
        samples, channels, height, width = self.tensors[x].shape
        settings = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
        return self.add("max_pool2d", [x], (samples, channels, height // 2, width // 2), **settings)[0]

    def pointwise(self, *inputs: int) -> int:
        return self.add("pointwise", inputs, self.tensors[inputs[0]].shape)[0]

    def cell(self, x: int, state: tuple[int, int], layer: str) -> tuple[int, int]:
        samples, inputs = self.tensors[x].shape
        units = self.tensors[state[0]].shape[1]
        weights = [(4, units, inputs), (4, units, units), (4, units), (4, units)]
        flops = 8.0 * samples * units * (inputs + units)
        shape = samples, units
        return self.add("lstm_cell", [x, *state], shape, shape, weights=weights, flops=flops, layer=layer)  # type: ignore[return-value]

    def graph(self, scores: int) -> OperatorGraph:
        samples = self.tensors[scores].shape[0]
        loss = self.add("cross_entropy", [scores, self.bring(samples)], (samples,))[0]
        mean = self.add("loss_of_my_own", [loss], ())[0]
        return OperatorGraph(tuple(self.operators), self.tensors, tuple(self.batch), self.weights, mean)

    def _tensor(self, tensor: TensorShape) -> int:
        self.tensors[len(self.tensors)] = tensor
        return len(self.tensors) - 1


def perceptron(samples: int = 8, sizes: Sequence[int] = (64, 128, 16)) -> OperatorGraph:
    """Linear layers with something pointwise between them."""
    build = Builder()
    x = build.bring(samples, sizes[0])
    for size in sizes[1:-1]:
        x = build.pointwise(build.linear(x, size))
    return build.graph(build.linear(x, sizes[-1]))


def lenet(samples: int = 64) -> OperatorGraph:
    """LeNet for images of 28 x 28, its activations within its layers."""
    build = Builder()
    x = build.bring(samples, 1, 28, 28)
    x = build.pool(build.convolution(x, 20, 5))
    x = build.pool(build.convolution(x, 50, 5))
    x = build.add("reshape", [x], (samples, 800))[0]
    return build.graph(build.linear(build.linear(x, 500), 10))


def branches(samples: int = 8, channels: int = 8, size: int = 8) -> OperatorGraph:
    """Two ways from the first convolution to the sum."""
    build = Builder()
    x = build.convolution(build.bring(samples, 3, size, size), channels, 3, padding=1)
    x = build.pointwise(build.convolution(x, channels, 3, padding=1), build.pointwise(x))
    x = build.add("reshape", [x], (samples, channels * size * size))[0]
    return build.graph(build.linear(x, 10))


def language_model(
    samples: int = 16, units: int = 64, words: int = 100, steps: int = 2, layers: int = 2
) -> OperatorGraph:
    """LSTM layers, unrolled; the scores of the last step make the loss."""
    build = Builder()
    states = [(build.bring(samples, units), build.bring(samples, units)) for _ in range(layers)]
    for _ in range(steps):
        table = [(words, units)]
        x = build.add("embedding", [build.bring(samples)], (samples, units), weights=table, layer="embedding")[0]
        for layer in range(layers):
            states[layer] = build.cell(x, states[layer], f"lstm{layer}")
            x = states[layer][0]
    return build.graph(build.linear(x, words))


def model_of(graph: OperatorGraph, topology: DeviceTopology, learners: int = 1) -> StepModel:
    return StepModel(graph, RULES, topology, RooflineCosts(graph, RULES, topology), learners=learners)


class SlowSimulation:
    """Simulates every proposal from nothing."""

    def __init__(self, model: StepModel, splits: Sequence[Split]) -> None:
        self.model, self.splits = model, tuple(splits)
        found = self._time(self.splits)
        assert found is not None
        self.makespan_ns = found
        self._pending: tuple[tuple[Split, ...], int | None] | None = None

    def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
        assert self._pending is None, "a proposal is neither accepted nor undone"
        splits = tuple(changes.get(operator, split) for operator, split in enumerate(self.splits))
        self._pending = splits, self._time(splits)
        return self._pending[1]

    def accept(self) -> None:
        assert self._pending is not None
        self.splits, makespan = self._pending
        assert makespan is not None, "what does not fit was accepted"
        self.makespan_ns, self._pending = makespan, None

    def undo(self) -> None:
        self._pending = None

    def _time(self, splits: Sequence[Split]) -> int | None:
        result = simulate(self.model, Partition(self.model.graph.hash, tuple(splits)))
        return None if result.refusal else result.makespan_ns
