from __future__ import annotations

from dataclasses import replace

import pytest

from bow.planning.problem.box import Box, tiles, whole
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.simulator.costs import RooflineCosts, tile_key, tile_work
from tests.planning.search_graphs import Builder, language_model, lenet, perceptron

GPU = DeviceKind("gpu", memory_gib=16, tflops=2.0, gb_per_s=500, overhead_us=10, half_outputs=1000)
ONE = DeviceTopology("one", (Device("gpu0", GPU),))


def number_of(graph: OperatorGraph, kind: str) -> int:
    return next(number for number, operator in enumerate(graph.operators) if operator.kind == kind)


def linear(samples: int, inputs: int, outputs: int, differentiable: bool = True) -> OperatorGraph:
    build = Builder()
    return build.graph(build.linear(build.bring(samples, inputs, differentiable=differentiable), outputs))


def box_of(graph: OperatorGraph, number: int) -> Box:
    return whole(graph.output_shape(graph.operators[number]))


def test_product_takes_what_its_arithmetic_takes_when_it_is_large() -> None:
    graph = linear(1024, 512, 2048)
    outputs = 1024 * 2048
    expected_s = 10e-6 + 2 * 512 * outputs * (1 + 1000 / outputs) / 2e12
    assert RooflineCosts(graph, RULES, ONE).tile_time(0, box_of(graph, 0), 0).forward_ns == pytest.approx(
        expected_s * 1e9, rel=1e-6
    )


def test_product_takes_what_reading_its_weights_takes_when_there_are_few_samples() -> None:
    graph = linear(1, 4096, 4096)
    num_bytes = 4 * (4096 + 4096 * 4096 + 4096 + 4096)  # inputs, weights, bias, outputs
    time = RooflineCosts(graph, RULES, ONE).tile_time(0, box_of(graph, 0), 0).forward_ns
    assert time == pytest.approx(10e3 + num_bytes / 500, rel=1e-3)


def test_split_by_channels_takes_less_in_all_than_by_samples() -> None:
    graph = linear(64, 1024, 4096)
    costs, shape = RooflineCosts(graph, RULES, load_topology("k80_cluster")), (64, 4096)

    def total(degrees: tuple[int, int]) -> int:
        return sum(
            costs.tile_time(0, box, 0).forward_ns + costs.tile_time(0, box, 0).backward_ns
            for box in tiles(shape, degrees)
        )

    assert total((1, 16)) < 0.7 * total((16, 1))
    assert total((1, 1)) < total((1, 16))


def test_backward_pass_has_twice_the_work_where_inputs_have_gradients() -> None:
    inner, first = linear(256, 512, 512), linear(256, 512, 512, differentiable=False)
    works = [tile_work(graph, RULES, graph.operators[0], box_of(graph, 0)) for graph in (inner, first)]
    assert works[0].backward.flops == 2 * works[0].forward.flops
    assert works[1].backward.flops == works[1].forward.flops
    assert (works[0].backward.kernels, works[1].backward.kernels) == (2, 1)


def frozen(graph: OperatorGraph) -> OperatorGraph:
    weights = {name: replace(weight, differentiable=False) for name, weight in graph.weights.items()}
    return replace(graph, weights=weights)


def test_frozen_weights_have_no_gradients() -> None:
    own = linear(256, 512, 512), frozen(linear(256, 512, 512)), frozen(linear(256, 512, 512, differentiable=False))
    works = [tile_work(graph, RULES, graph.operators[0], box_of(graph, 0)) for graph in own]
    assert works[1].backward.flops == works[1].forward.flops == works[0].backward.flops / 2
    made = 4 * (512 * 512 + 512)  # gradients of the weights, and the output's gradient that they are made from
    assert works[0].backward.num_bytes - works[1].backward.num_bytes == made + 4 * 256 * 512
    assert (works[2].backward.flops, works[2].backward.num_bytes, works[2].backward.kernels) == (0, 0, 0)
    keys = {tile_key(graph, RULES, graph.operators[0], box_of(graph, 0)) for graph in own}
    assert len(keys) == 3


def test_view_takes_no_time() -> None:
    graph = lenet()
    number = number_of(graph, "reshape")
    costs = RooflineCosts(graph, RULES, ONE)
    assert costs.tile_time(number, box_of(graph, number), 0).forward_ns == 0
    assert costs.tile_time(number, box_of(graph, number), 0).backward_ns == 0


def test_embedding_reads_few_rows_and_writes_the_gradient_of_all() -> None:
    graph = language_model(words=100_000)
    number = number_of(graph, "embedding")
    work = tile_work(graph, RULES, graph.operators[number], box_of(graph, number))
    table = 100_000 * 64 * 4
    assert work.forward.num_bytes < table / 100
    assert table <= work.backward.num_bytes < 1.01 * table


def test_update_goes_over_its_weights_five_times() -> None:
    graph = perceptron()
    costs = RooflineCosts(graph, RULES, ONE)
    assert costs.update_ns(10**6, 0) == 10_000 + 10_000
    assert costs.update_ns(0, 0) == 0


def test_tiles_of_equal_operators_and_sizes_have_one_key() -> None:
    graph = language_model()
    cells = [operator for operator in graph.operators if operator.layer == "lstm1"]
    keys = [{tile_key(graph, RULES, each, box) for box in tiles((16, 64), (2, 2))} for each in cells]
    assert [len(of_cell) for of_cell in keys] == [1, 1]
    assert keys[0] != keys[1]  # no gradient flows back to the states that the first cell begins with
    assert tile_key(graph, RULES, cells[1], ((0, 8), (0, 64))) not in keys[1]
