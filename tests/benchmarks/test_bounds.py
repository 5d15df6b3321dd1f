"""A step taken apart: nothing is left out, and what is timed alone is the operator of the step."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bounds import (
    CONVOLUTION,
    INPUT,
    MOVING,
    NORM,
    OTHERS,
    POOLING,
    PRODUCT,
    RECURRENT,
    WEIGHT,
    Loop,
    SgdSteps,
    part_of,
    step_of,
    values_of,
)
from benchmarks.trainings import LEARNING_RATE, MOMENTUM
from benchmarks.workloads import WORKLOADS
from bow.runtime.local import operators_of
from bow.schedule.profiler.measuring import BoundStep


def bound(model: str) -> BoundStep:
    workload = WORKLOADS[model]
    return step_of(workload.model(), workload.make_data(4), workload.loss)


@pytest.mark.parametrize("model", ["lenet", "lstm"])
def test_what_is_timed_alone_makes_what_the_operator_makes_in_the_step(model: str) -> None:
    step = bound(model)
    live = values_of(step)
    for operator in operators_of(step.graph):
        loop = Loop(operator, step.graph, live)
        first = next(value for value in operator.results if value is not None)
        assert torch.equal(loop.runtime.run({}, {}, (), seed=0).loss, live[first]), operator.kind
        loop.runtime.close()


def test_operators_are_told_apart_by_what_they_compute() -> None:
    lenet = {part_of(each) for each in operators_of(bound("lenet").graph) if not each.is_view}
    assert {CONVOLUTION, INPUT, WEIGHT, POOLING, PRODUCT, OTHERS} <= lenet
    lstm = [part_of(each) for each in operators_of(bound("lstm").graph) if not each.is_view]
    assert lstm.count(RECURRENT) == 4  # two layers, forward and backward, as in the engine
    residual = {part_of(each) for each in operators_of(bound("resnet8").graph) if not each.is_view}
    assert {CONVOLUTION, INPUT, WEIGHT, NORM, PRODUCT, MOVING, OTHERS} <= residual


def test_the_steps_that_are_timed_are_those_of_sgd() -> None:
    weights, gradient = torch.randn(5_000), torch.randn(5_000)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = torch.optim.SGD([parameter], lr=LEARNING_RATE, momentum=MOMENTUM)
    parameter.grad = gradient
    steps = SgdSteps(weights, gradient)
    assert 0 < steps.seconds() < 1
    for _ in steps.steps:
        optimizer.step()
    torch.testing.assert_close(weights, parameter.detach())
