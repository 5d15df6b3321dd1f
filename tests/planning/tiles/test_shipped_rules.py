"""Every shipped rule, by numbers: operators split at random, and compared with PyTorch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from bow.errors import GraphError
from bow.planning.rules import RULES, shipped_rules
from bow.planning.rules.rule import Along, MappedRule, Shapes, Shifted, Side, Whole
from bow.planning.tiles.operators.calls import CALLS, SummedCall, call_of
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_over_tiles_is_exact_in_half_precision(dtype: torch.dtype) -> None:
    """bfloat16 has no odd number above 256, and float16 none above 65,504."""
    generator = torch.Generator().manual_seed(0)
    samples = (30.06 + torch.randn(2, 3, 199, 201, generator=generator)).to(dtype)
    weight, bias, *moved = (torch.rand(3, generator=generator).to(dtype) for _ in range(4))
    call, tile = CALLS["batch_norm"], cast(Any, SimpleNamespace(attributes={"eps": 1e-5, "momentum": 0.1}))
    assert isinstance(call, SummedCall)
    found = torch.stack([call.moments(tile, (half,)) for half in samples.split(1)])
    made = torch.cat([call.finish(tile, (half, weight, bias), found)[0] for half in samples.split(1)])
    expected = [each.float() for each in moved]
    wanted = F.batch_norm(samples.float(), *expected, weight.float(), bias.float(), True)
    assert made.dtype == dtype
    torch.testing.assert_close(made.float(), wanted, rtol=0, atol=0.02)
    kept = dict(zip(("running_mean", "running_var"), moved, strict=True))
    call.update(tile, found, kept)
    for own, value in zip(moved, expected, strict=True):
        torch.testing.assert_close(own.float(), value, rtol=0.01, atol=0.01)
