"""What bounds a model, on made-up measurements."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from benchmarks.bounds import ARITHMETIC, CALLS, MEMORY, Bound, Machine, StepCosts, find_bound, sentences, step_costs
from benchmarks.line_up import Lane
from benchmarks.measure import Spread
from benchmarks.workloads import WORKLOADS
from bow.graph import capture
from tests.benchmarks.groups import GROUP, PYTORCH_ALONE

COSTS = StepCosts(operators=10, flops=1_000_000, bytes_moved=2_000, weight_bytes=100)


def spread(value: float) -> Spread:
    return Spread(value, value, value, 1)


def bound(arithmetic: float, memory: float, calls: float, *, batch: int = 4, model: str = "mlp") -> Bound:
    """Of a step that takes 1 ms."""
    group = replace(GROUP, model=model, batch_size=batch)
    estimates = {ARITHMETIC: arithmetic * 1e-3, MEMORY: memory * 1e-3, CALLS: calls * 1e-3}
    return Bound(group, Lane("graph", 1, 2), COSTS, 1e-3, estimates)


class Known(Machine):
    """A machine whose rates are known."""

    def flops_per_s(self) -> float:
        return 1e12

    def bytes_per_s(self, size: int) -> float:
        return 1e11


def test_the_largest_estimate_is_the_bound() -> None:
    assert bound(0.6, 0.2, 0.1).name == ARITHMETIC
    assert bound(0.3, 0.5, 0.1).name == MEMORY
    assert bound(0.3, 0.5, 1.2).name == CALLS


def test_what_explains_little_is_no_bound() -> None:
    assert bound(0.3, 0.2, 0.3).name is None


def test_a_step_is_timed_in_graph_with_the_best_number_of_learners_on_one_thread() -> None:
    found = find_bound(GROUP, Known({"python": spread(2e-6)}, cores=2))
    assert found is not None
    assert (found.lane.implementation, found.lane.learners, found.lane.threads) == ("graph", 2, 1)
    assert found.step_s == 2 * 4 / 400  # two cores, each with batches of 4, together 400 samples a second


def test_learners_beyond_the_cores_take_turns() -> None:
    many = replace(GROUP, lanes=(*GROUP.lanes, Lane("graph", 1, 8, rates=(800.0,) * 3)))
    found = find_bound(many, Known({"python": spread(2e-6)}, cores=2))
    assert found is not None
    assert found.step_s == 2 * 4 / 800


def test_where_graph_did_not_run_nothing_is_said() -> None:
    assert find_bound(PYTORCH_ALONE, Known({"python": spread(2e-6)}, cores=2)) is None


def test_estimates_come_from_the_step_graph_and_the_rates() -> None:
    found = find_bound(GROUP, Known({"python": spread(2e-6)}, cores=2))
    assert found is not None
    costs = found.costs
    assert found.estimates_s == {
        ARITHMETIC: costs.flops / 1e12,
        MEMORY: costs.bytes_moved / 1e11,
        CALLS: costs.operators * 2e-6,
    }


def test_the_runtimes_own_cost_of_an_operator_is_used_where_it_is_known() -> None:
    assert Machine({"python": spread(2e-6)}, 2).operator_s() == 2e-6
    assert Machine({"python": spread(2e-6), "runtime": spread(1e-6)}, 2).operator_s() == 1e-6


def test_a_step_asks_for_its_operators_flops_and_bytes() -> None:
    costs = step_costs("mlp", 16)
    # Forward, gradient of the weights, and of the second layer's inputs; a multiply-add is two.
    products = 2 * 16 * (2 * 784 * 256 + 3 * 256 * 10)
    assert products <= costs.flops <= 1.1 * products
    assert costs.weight_bytes == 4 * 203_530
    assert costs.bytes_moved > 5 * costs.weight_bytes
    assert 10 < costs.operators < 50


def test_only_what_goes_through_the_dispatcher_is_counted() -> None:
    workload = WORKLOADS["mlp"]
    graph = capture(workload.build(), workload.make_data(16), workload.loss)
    views = sum(operator.is_view for operator in graph.operators)
    assert views > 0
    assert step_costs("mlp", 16).operators == len(graph.operators) - views


def test_rates_are_measured_once_and_leave_the_threads_alone() -> None:
    threads = torch.get_num_threads()
    ticks = iter(range(10_000))
    machine = Machine({"python": spread(2e-6)}, 2, clock=lambda: float(next(ticks)))
    assert machine.flops_per_s() == 2 * 1024**3
    assert machine.bytes_per_s(100) == machine.bytes_per_s(2**20) == 2 * 2**20
    assert machine.as_dict()["gbyte_per_s_by_copied_bytes"].keys() == {2**20}
    used = next(ticks)
    machine.flops_per_s()
    machine.bytes_per_s(100)
    assert next(ticks) == used + 1
    assert torch.get_num_threads() == threads


def test_a_sentence_tells_what_bounds_a_model_at_each_batch() -> None:
    bounds = [bound(0.2, 0.5, 0.1, batch=4), bound(0.6, 0.2, 0.1, batch=16), bound(0.7, 0.2, 0.1, batch=32)]
    assert sentences(bounds) == {
        "mlp": "MLP, 10 operators a step, is bounded in engine `graph` by memory at batch 4 (50% of the time) and "
        "by arithmetic at batch 16 and 32 (60% and 70% of the time)."
    }


def test_a_sentence_admits_that_nothing_explains_the_time() -> None:
    (sentence,) = sentences([bound(0.1, 0.05, 0.2, model="logistic_regression")]).values()
    assert "is bounded in engine `graph` by none of the three at batch 4" in sentence
    assert "the largest single share of the time is 20% (calling operators)" in sentence


def test_an_estimate_above_the_measured_time_is_all_of_it() -> None:
    (sentence,) = sentences([bound(1.3, 0.2, 0.1, batch=4), bound(0.6, 0.2, 0.1, batch=16)]).values()
    assert "by arithmetic at batch 4 and 16 (all and 60% of the time)" in sentence


def test_every_model_has_its_sentence() -> None:
    assert list(sentences([bound(1, 0, 0), bound(0, 1, 0, model="lstm")])) == ["mlp", "lstm"]


@pytest.mark.parametrize(("name", "value"), [("operator_us", 100.0), ("gflop_per_s", 1.0), ("bound", ARITHMETIC)])
def test_the_json_has_what_the_sentence_rests_on(name: str, value: object) -> None:
    values = bound(0.6, 0.2, 0.1).as_dict()
    assert values[name] == value
    assert re.search("graph", values["measured_on"])
