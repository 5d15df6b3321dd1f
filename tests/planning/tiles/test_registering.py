"""Rules for operators of one's own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import GraphError
from bow.planning.problem.partition import Split
from bow.planning.rules import RULES, shipped_rules
from bow.planning.rules.rule import Along, MappedRule, Rules, Shapes, Side, Whole
from bow.planning.rules.views import PointwiseRule
from bow.planning.tiles import ProcessGroup, import_rules, register_rule, registered_rules, registering
from bow.planning.tiles.operators.calls import CALLS, Operands, Outputs, Tile
from tests.planning.tiles.equality import TOLERANCE, Task, by_pytorch, by_tiles, difference, task

KIND = "bow_tests.weighted.default"


@torch.library.custom_op("bow_tests::weighted", mutates_args=())
def weighted(inputs: Tensor, weight: Tensor, power: int) -> Tensor:
    """`sum_i x_{ni}^power w_{ci}`."""
    return inputs.pow(power) @ weight.t()


@weighted.register_fake
def _(inputs: Tensor, weight: Tensor, power: int) -> Tensor:
    return inputs.new_empty(inputs.shape[0], weight.shape[0])


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.power = inputs[2]


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    inputs, weight = ctx.saved_tensors
    of_inputs = ctx.power * inputs.pow(ctx.power - 1) * (gradient @ weight)
    return of_inputs, gradient.t() @ inputs.pow(ctx.power), None


weighted.register_autograd(_back, setup_context=_keep)


class Weighted(MappedRule):
    """Split by sample and by channel."""

    def sides(self, attributes: Any, shapes: Shapes) -> list[list[Side]]:
        return [[Along(0), Whole()], [Along(1), Whole()]]


class Halved(MappedRule):
    """Forgets that all inputs are summed over."""

    def sides(self, attributes: Any, shapes: Shapes) -> list[list[Side]]:
        return [[Along(0), Along(1)], [Along(1), Along(1)]]


EXAMPLE = [torch.rand(6, 4, dtype=torch.float64), nn.Parameter(torch.rand(4, 4, dtype=torch.float64)), 2]


@pytest.fixture
def rules() -> Iterator[Rules]:
    yield Rules()
    CALLS.pop(KIND, None)


def test_an_operator_of_ones_own_is_split(rules: Rules) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(5, 4, dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            made: Tensor = torch.ops.bow_tests.weighted(inputs, self.weight, 3)
            return made

    batch = torch.rand(6, 4, dtype=torch.float64), torch.rand(6, 5, dtype=torch.float64)
    optimizer = functools.partial(torch.optim.SGD, lr=0.01)
    given: Task = task("own", Net(), batch, F.mse_loss, optimizer)
    register_rule(Weighted(KIND), EXAMPLE, rules=rules)
    graph = given.captured.graph
    (own,) = (operator for operator in graph.operators if operator.kind == KIND)
    assert own.weights == ("weight",)
    assert [each.kind for each in rules.dimensions(own, graph)] == ["S", "P"]
    splits = [
        Split((3, 2), (0,) * 6) if operator is own else Split((1,) * len(graph.output_shape(operator)), (0,))
        for operator in graph.operators
    ]
    found = by_tiles(given, given.strategy(splits), ProcessGroup(torch.device("cpu")), rules=with_shipped(rules))
    assert difference(found, by_pytorch(given)) < TOLERANCE


def with_shipped(rules: Rules) -> Rules:
    """Those, and what bow ships."""
    for rule in shipped_rules():
        rules.register(rule)
    return rules


def test_a_wrong_rule_is_refused(rules: Rules) -> None:
    with pytest.raises(GraphError, match=f"the rule of '{KIND}' is wrong: split into .* parts, .*; correct its boxes"):
        register_rule(Halved(KIND), EXAMPLE, rules=rules)
    assert KIND not in rules


def test_a_wrong_gradient_is_refused(rules: Rules) -> None:
    def detached(tile: Tile, operands: Operands, seed: int) -> Outputs:
        inputs, weight = operands
        assert inputs is not None
        assert weight is not None
        return (inputs.pow(2).detach() @ weight.t(),)

    with pytest.raises(GraphError, match=r"the gradient of operand 0 is off by"):
        register_rule(Weighted(KIND), EXAMPLE, call=detached, rules=rules)
    assert KIND not in CALLS


def test_a_call_of_ones_own_computes_tiles(rules: Rules) -> None:
    seen = []

    def own(tile: Tile, operands: Operands, seed: int) -> Outputs:
        seen.append(tile.box)
        inputs, weight = operands
        assert inputs is not None
        assert weight is not None
        return (inputs.pow(tile.attributes["arguments"][2]) @ weight.t(),)

    register_rule(Weighted(KIND), EXAMPLE, call=own, rules=rules)
    assert CALLS[KIND] is own
    assert len(set(seen)) > 1


@pytest.mark.parametrize(
    ("kind", "examples", "message"),
    [
        (KIND, [], "has no example"),
        ("bow_tests.nothing.default", [EXAMPLE], "operator 'bow_tests.nothing.default' of the rule cannot be called"),
        ("weighted", [EXAMPLE], "name it as namespace.name.overload"),
        (KIND, [EXAMPLE[:2]], "pass the arguments that it takes"),
    ],
    ids=["no example", "no operator", "name", "arguments"],
)
def test_what_cannot_be_tried_out_is_refused(kind: str, examples: list[Any], message: str, rules: Rules) -> None:
    with pytest.raises(GraphError, match=message):
        register_rule(Weighted(kind), *examples, rules=rules)


def test_other_processes_can_take_over_what_was_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "aten.sinc.default"
    for process in ("this one", "another"):
        monkeypatch.setattr(registering, "_registered", {})
        monkeypatch.setattr(RULES, "_rules", dict(RULES._rules))
        assert kind not in RULES, process
        if process == "this one":
            register_rule(PointwiseRule(kind), [torch.rand(4, 6, dtype=torch.float64)])
            registered = registered_rules()
        else:
            import_rules(registered)
        assert kind in RULES
        monkeypatch.undo()
