"""Checks rules by numbers: an operator is split at random, and compared with the whole."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bow.errors import GraphError, reason
from bow.planning.problem.box import Box, tiles, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.mapped import places
from bow.planning.rules.rule import Rule
from bow.planning.tiles.calls import Call, Outputs, SummedCall
from bow.planning.tiles.regions import region, sizes
from bow.planning.tiles.tile import tile_of

MOST_PARTS = 4
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""What may be off, relative to the largest value; other types have to be equal."""

SEED = 1
"""Of the random numbers that an operator draws: the same for all tiles."""


def check_rule(
    rule: Rule,
    call: Call,
    graph: OperatorGraph,
    operator: PlanOperator,
    operands: Sequence[Tensor],
    *,
    whole_call: Call | None = None,
    trials: int = 20,
    seed: int = 0,
) -> None:
    """Compare an operator with itself, split at random: what it makes, and the gradients of what it reads."""
    draw = random.Random(seed)
    dimensions = rule.dimensions(operator, graph)
    unsplit = _Trial(rule, whole_call or call, graph, operator, (1,) * len(dimensions)).results(operands)
    for _ in range(trials):
        degrees = [1 if d.kind is None else draw.randint(1, max(1, min(d.size, MOST_PARTS))) for d in dimensions]
        trial = _Trial(rule, call, graph, operator, degrees)
        try:
            found = trial.results(operands)
        except GraphError:
            raise
        except Exception as error:
            raise trial.error(f"a tile fails ({reason(error)})") from error
        for place, (one, other) in enumerate(zip(unsplit, found, strict=True)):
            if (off := _difference(one, other)) > TOLERANCES.get(one.dtype, 0.0):
                last = len(operator.outputs)
                what = f"output {place}" if place < last else f"the gradient of operand {place - last}"
                raise trial.error(f"{what} is off by {off:.3g}")


@dataclass(frozen=True)
class _Trial:
    """An operator split in one way, all tiles computed here."""

    rule: Rule
    call: Call
    graph: OperatorGraph
    operator: PlanOperator
    degrees: Sequence[int]

    def results(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """The outputs put together, and the gradients of the operands that can have one."""
        flows = [self._flows(kind, index) for kind, index in places(self.operator)]
        leaves = [operand.detach().requires_grad_(flow) for operand, flow in zip(operands, flows, strict=True)]
        boxes = list(tiles(self.graph.output_shape(self.operator), self.degrees))
        outputs = self._outputs(boxes, self._made(boxes, leaves))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        downhill = [(output * _directions(output)).sum().double() for output in outputs if output.requires_grad]
        if not downhill:
            return [*outputs, *(torch.zeros_like(leaf) for leaf in wanted)]
        total = torch.stack(downhill).sum()
        gradients = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        return [*(output.detach() for output in outputs), *gradients]

    def error(self, what: str) -> GraphError:
        """The error for a rule that is wrong."""
        return GraphError(
            f"the rule of {self.rule.kind!r} is wrong: split into {list(self.degrees)} parts, {what}; correct its boxes"
        )

    def _flows(self, kind: str, index: int) -> bool:
        """Whether an operand can have a gradient."""
        if kind == "weight":
            return self.graph.weights[self.operator.weights[index]].differentiable
        return self.graph.tensors[self.operator.inputs[index]].differentiable

    def _made(self, boxes: Sequence[Box], leaves: Sequence[Tensor]) -> list[Outputs]:
        """By tile: its outputs."""
        parts = [tile_of(self.graph, self.operator, self.rule, box) for box in boxes]
        given = [[_part(leaf, box) for leaf, box in zip(leaves, tile.operands, strict=True)] for tile in parts]
        if not isinstance(self.call, SummedCall):
            return [self.call(tile, operands, SEED) for tile, operands in zip(parts, given, strict=True)]
        groups = [self.rule.sum_box(self.operator, self.graph, box) for box in boxes]
        if len(set(groups)) == len(groups):
            return [self.call.alone(tile, operands, None) for tile, operands in zip(parts, given, strict=True)]
        moments = [self.call.moments(tile, operands) for tile, operands in zip(parts, given, strict=True)]
        found = {
            group: torch.stack([each for each, other in zip(moments, groups, strict=True) if other == group])
            for group in groups
        }
        return [
            self.call.finish(tile, operands, found[group])
            for tile, operands, group in zip(parts, given, groups, strict=True)
        ]

    def _outputs(self, boxes: Sequence[Box], made: Sequence[Outputs]) -> list[Tensor]:
        """The whole outputs out of those of the tiles, differentiable by them."""
        of_tiles = [self.rule.output_boxes(self.operator, self.graph, box) for box in boxes]
        outputs = []
        for place, number in enumerate(self.operator.outputs):
            shape = self.graph.tensors[number].shape
            output, covered = made[0][place].new_zeros(shape), 0
            for own, tensors in zip(of_tiles, made, strict=True):
                if tuple(tensors[place].shape) != sizes(own[place]):
                    raise self.error(f"a tile makes {tuple(tensors[place].shape)} for the box {own[place]}")
                region(output, own[place], whole(shape)).copy_(tensors[place])
                covered += tensors[place].numel()
            if covered != math.prod(shape):
                raise self.error(f"its tiles make {covered} of {math.prod(shape)} elements")
            outputs.append(output)
        return outputs


def _part(leaf: Tensor, box: Box | None) -> Tensor | None:
    return None if box is None else region(leaf, box, whole(leaf.shape))


def _directions(output: Tensor) -> Tensor:
    """In which direction the gradient is taken: some random numbers."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value where that is above 1."""
    if one.numel() == 0 or torch.equal(one, other):
        return 0.0
    scale = max(1.0, float(one.abs().max())) if one.is_floating_point() else 1.0
    difference = float((one.double() - other.double()).abs().max()) / scale
    return difference if math.isfinite(difference) else math.inf
