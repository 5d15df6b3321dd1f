"""Register rules for custom operators, after a numerical check."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bow.errors import GraphError, reason
from bow.planning.problem.box import Box, sizes, tiles, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rule, Rules, places
from bow.planning.tiles.graph_builder import GraphBuilder, TensorRef, Value, Weight
from bow.planning.tiles.operators.calls import (
    CALLS,
    Call,
    LocalCall,
    Outputs,
    SummedCall,
    call_by_name,
    exported_call,
    function,
    tile_of,
)
from bow.planning.tiles.regions import region

MOST_PARTS = 4  # of a dimension in a trial
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative to the largest value; other dtypes must be equal
SEED = 1  # of the operator's random numbers, the same for all tiles


def check_rule(
    rule: Rule,
    call: Call,
    graph: OperatorGraph,
    operator: PlanOperator,
    operands: Sequence[Tensor],
    *,
    whole_call: Call | None = None,
    trials: int = 20,
) -> None:
    """Compare outputs and gradients of an operator with those of random splits of it."""
    draw = random.Random(0)
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
    """One split of an operator, with all tiles computed in this process."""

    rule: Rule
    call: Call
    graph: OperatorGraph
    operator: PlanOperator
    degrees: Sequence[int]

    def results(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """Return the assembled outputs, and the gradients of the differentiable operands."""
        flows = [self._flows(kind, index) for kind, index in places(self.operator)]
        leaves = [operand.detach().requires_grad_(flow) for operand, flow in zip(operands, flows, strict=True)]
        boxes = list(tiles(self.graph.output_shape(self.operator), self.degrees))
        outputs = self._outputs(boxes, self._made(boxes, leaves))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        projections = [(output * _directions(output)).sum().double() for output in outputs if output.requires_grad]
        if not projections:
            return [*outputs, *(torch.zeros_like(leaf) for leaf in wanted)]
        total = torch.stack(projections).sum()
        gradients = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        return [*(output.detach() for output in outputs), *gradients]

    def error(self, what: str) -> GraphError:
        return GraphError(
            f"the rule of {self.rule.kind!r} is wrong: split into {list(self.degrees)} parts, {what}; correct its boxes"
        )

    def _flows(self, kind: str, index: int) -> bool:
        if kind == "weight":
            return self.graph.weights[self.operator.weights[index]].differentiable
        return self.graph.tensors[self.operator.inputs[index]].differentiable

    def _made(self, boxes: Sequence[Box], leaves: Sequence[Tensor]) -> list[Outputs]:
        parts = [tile_of(self.graph, self.operator, self.rule, box) for box in boxes]
        given = [[_part(leaf, box) for leaf, box in zip(leaves, tile.operands, strict=True)] for tile in parts]
        if not isinstance(self.call, SummedCall):
            return [self.call(tile, operands, SEED) for tile, operands in zip(parts, given, strict=True)]
        groups = [self.rule.sum_box(self.operator, self.graph, box) for box in boxes]
        if len(set(groups)) == len(groups):
            return [self.call.single_tile(tile, operands, None) for tile, operands in zip(parts, given, strict=True)]
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
        """Assemble the whole outputs from the tiles, keeping the autograd graph."""
        of_tiles = [self.rule.output_boxes(self.operator, self.graph, box) for box in boxes]
        outputs = []
        for place, number in enumerate(self.operator.outputs):
            shape = self.graph.tensors[number].shape
            output, covered = made[0][place].new_zeros(shape), 0
            for own, tensors in zip(of_tiles, made, strict=True):
                if tuple(tensors[place].shape) != sizes(own[place]):
                    raise self.error(
                        f"a tile has shape {tuple(tensors[place].shape)}, expected that of the box {own[place]}"
                    )
                region(output, own[place], whole(shape)).copy_(tensors[place])
                covered += tensors[place].numel()
            if covered != math.prod(shape):
                raise self.error(f"its tiles cover {covered} of {math.prod(shape)} elements")
            outputs.append(output)
        return outputs


def _part(leaf: Tensor, box: Box | None) -> Tensor | None:
    return None if box is None else region(leaf, box, whole(leaf.shape))


def _directions(output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest value if that is above 1."""
    if one.numel() == 0 or torch.equal(one, other):
        return 0.0
    scale = max(1.0, float(one.abs().max())) if one.is_floating_point() else 1.0
    difference = float((one.double() - other.double()).abs().max()) / scale
    return difference if math.isfinite(difference) else math.inf


Registered: TypeAlias = Mapping[str, tuple[Rule, LocalCall | None]]  # by kind: rule and tile function

_registered: dict[str, tuple[Rule, LocalCall | None]] = {}


def registered_rules() -> Registered:
    """Return the rules registered in addition to bow's own."""
    return dict(_registered)


def import_rules(registered: Registered) -> None:
    """Register the rules of another process, which has checked them."""
    for rule, call in registered.values():
        _register(rule, call, RULES)


def register_rule(
    rule: Rule, *examples: Sequence[Any], call: LocalCall | None = None, rules: Rules = RULES, trials: int = 20
) -> None:
    """Register a rule that allows an operator to be split.

    The rule is checked first: each example is split at random and computed tile by tile; outputs and gradients are
    compared with those of the unsplit operator. In the operator graph, the attribute `arguments` has the operator's
    arguments, with tensors as `{"operand": number}`.

    Args:
        rule: the rule; `rule.kind` is the operator's full name, such as `mylib.scale.default` for
            `torch.ops.mylib.scale`.
        examples: one or more lists of arguments to call the operator with. An `nn.Parameter` is a weight.
            The tolerance is 1e-9 for float64 and 1e-4 for float32.
        call: computes a tile; None: the operator itself, called with the tile's parts of its tensors.
        rules: the registry.
        trials: the number of random splits of each example.

    Raises:
        GraphError: no such operator, no example, or a tile that differs from its part of the whole.

    Example:
        >>> import torch
        >>> from bow.planning.rules.views import PointwiseRule
        >>> from bow.planning.rules.rule import Rules
        >>> register_rule(PointwiseRule("aten.sinc.default"), [torch.rand(4, 6, dtype=torch.float64)], rules=Rules())
        >>> register_rule(PointwiseRule("aten.cumsum.default"), [torch.rand(4, 6), 1], rules=Rules())
        Traceback (most recent call last):
        ...
        bow.errors.GraphError: the rule of 'aten.cumsum.default' is wrong: ...

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 4.
    """
    if not examples:
        raise GraphError(f"the rule of {rule.kind!r} has no example; pass arguments to test the operator with")
    for example in examples:
        _check_example(rule, call or call_by_name, example, trials)
    _register(rule, call, rules)


def _register(rule: Rule, call: LocalCall | None, rules: Rules) -> None:
    rules.register(rule)
    if rules is RULES:
        _registered[rule.kind] = rule, call
    if call is not None:
        CALLS[rule.kind] = call


def _check_example(rule: Rule, call: LocalCall, example: Sequence[Any], trials: int) -> None:
    weights = [argument for argument in example if isinstance(argument, nn.Parameter)]
    model = nn.ParameterDict({str(number): weight for number, weight in enumerate(weights)})
    batch = [each for each in example if isinstance(each, Tensor) and not isinstance(each, nn.Parameter)]
    builder = GraphBuilder(model, batch, requires_grad=True)

    def value(argument: Any) -> Value | Any:
        if isinstance(argument, nn.Parameter):
            return Weight(str(next(n for n, weight in enumerate(weights) if weight is argument)))
        if isinstance(argument, Tensor):
            return TensorRef(builder.batch[next(n for n, tensor in enumerate(batch) if tensor is argument)])
        return argument

    try:
        operator_function = function(rule.kind)
        made = operator_function(*example)
    except Exception as error:
        raise GraphError(
            f"operator {rule.kind!r} of the rule cannot be called with the example ({reason(error)}); name it as "
            "namespace.name.overload, and pass the arguments that it takes"
        ) from error
    exported = exported_call(rule.kind, operator_function, [value(argument) for argument in example], {}, made)
    outputs = builder.add(rule.kind, exported.operands, exported.outputs, exported.by_name())
    graph = builder.build(outputs[0])
    (operator,) = graph.operators
    operands = [batch[index] if kind == "input" else weights[index] for kind, index in places(operator)]
    check_rule(rule, call, graph, operator, operands, whole_call=call_by_name, trials=trials)
