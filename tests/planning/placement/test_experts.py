"""What experts do."""

from __future__ import annotations

from benchmarks.placement_machine import k80_machine
from bow.planning.placement.baselines import contiguous_parts, expert, layer_per_device
from bow.planning.placement.groups import module_groups
from tests.planning.placement.placed_steps import evaluator, every_operator, made_of, unrolled


def by_name(evaluate, placed) -> dict[str, int]:
    return {group.name.partition("@")[0]: placed[n] for n, group in enumerate(evaluate.groups.groups)}


def test_an_lstm_layer_has_a_device_the_embedding_goes_with_the_first_the_rest_with_the_last():
    graph = unrolled(layers=2)
    evaluate = evaluator(graph, module_groups(graph))
    placed = expert(evaluate)
    assert by_name(evaluate, placed) == {"embedding": 1, "lstm.cells.0": 1, "lstm.cells.1": 2, "softmax": 2}


def test_layers_take_turns_where_devices_are_few_and_leave_some_idle_where_they_are_many():
    graph = unrolled(layers=3)
    few, many = (evaluator(graph, module_groups(graph), k80_machine(gpus)) for gpus in (2, 4))
    assert by_name(few, layer_per_device(few))["lstm.cells.2"] == 1
    assert by_name(many, layer_per_device(many))["lstm.cells.2"] == 3
    assert 4 not in layer_per_device(many)


def test_other_networks_are_cut_into_contiguous_parts_of_equally_many_layers():
    graph = made_of(*((f"conv{n}", "conv2d", [f"conv{n - 1}" if n else "batch"]) for n in range(8)))
    evaluate = evaluator(graph, topology=k80_machine(4))
    assert expert(evaluate) == (1, 1, 2, 2, 3, 3, 4, 4)


def test_parts_are_cut_in_the_order_of_running_and_not_of_numbers():
    graph = made_of(*((f"conv{n}", "conv2d", [f"conv{n - 1}" if n else "batch"]) for n in range(4)))
    groups = every_operator(graph)
    turned = type(groups)(graph, groups.groups[::-1])
    assert contiguous_parts(evaluator(graph, turned)) == (2, 2, 1, 1)
