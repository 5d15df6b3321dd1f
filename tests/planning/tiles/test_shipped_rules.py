"""Every shipped rule, by numbers: operators split at random, and compared with PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

from bow.errors import GraphError
from bow.planning.rules import RULES, shipped_rules
from bow.planning.rules.rule import Along, MappedRule, Shapes, Shifted, Side, Whole
from bow.planning.tiles.operators.calls import call_of
from bow.planning.tiles.registering import check_rule
from tests.planning.tiles.cases import CASES, example

TRIALS = 12


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_tiles_are_parts_of_pytorchs_operator(name: str) -> None:
    case = example(name)
    (operator,) = case.graph.operators
    assert operator.kind in RULES
    whole_call = None if operator.kind == "dropout" else case.by_pytorch
    check_rule(
        RULES.of(operator),
        call_of(operator.kind),
        case.graph,
        operator,
        case.operands,
        whole_call=whole_call,
        trials=TRIALS,
    )


def test_every_kind_has_a_case() -> None:
    kinds = {operator.kind for name in CASES for operator in example(name).graph.operators}
    assert {rule.kind for rule in shipped_rules()} - kinds <= {
        "counted_mean",  # makes a number, so that there is nothing to split
        *(f"{what}_pool3d" for what in ("max", "avg", "adaptive_max", "adaptive_avg")),  # the code of two dimensions
    }


class TooNear(MappedRule):
    """A convolution without its halo."""

    def sides(self, attributes: Any, shapes: Shapes) -> list[list[Side]]:
        images = [Along(0), Whole(), *(Along(dim) for dim in range(2, len(shapes.output)))]
        weight = [Along(1), *(Whole() for _ in shapes.operands[1][1:])]
        return [images, weight, *([Along(1)] for _ in shapes.operands[2:])]


class Greedy(MappedRule):
    """A linear layer whose tiles read all weights, and so make all channels."""

    def sides(self, attributes: Any, shapes: Shapes) -> list[list[Side]]:
        return [[Along(0), Whole()], [Whole(), Whole()]]


class Elsewhere(MappedRule):
    """A sum of the elements of other samples."""

    def sides(self, attributes: Any, shapes: Shapes) -> list[list[Side]]:
        return [[Shifted(0, 1), Whole(), Along(1)]]


@pytest.mark.parametrize(
    ("name", "rule", "message"),
    [
        ("conv1d", TooNear("conv1d"), r"the rule of 'conv1d' is wrong: split into \[.*\] parts, .*; correct its boxes"),
        (
            "linear without bias",
            Greedy("linear"),
            r"the rule of 'linear' is wrong: .* a tile has shape \(.*\), expected that of the box",
        ),
        ("sum", Elsewhere("reduction"), "the rule of 'reduction' is wrong"),
    ],
    ids=["halo", "weights", "rows"],
)
def test_a_wrong_rule_is_found_out(name: str, rule: MappedRule, message: str) -> None:
    case = example(name)
    (operator,) = case.graph.operators
    with pytest.raises(GraphError, match=message):
        check_rule(rule, call_of(operator.kind), case.graph, operator, case.operands)
