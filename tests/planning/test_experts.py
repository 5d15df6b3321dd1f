"""Strategies that experts have designed."""

from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.baselines import one_weird_trick
from bow.planning.simulator.step_model import TaskKind
from tests.planning.search_graphs import Builder, lenet, model_of, perceptron
from tests.planning.small_steps import of_kind, tasks_of

NODE = load_topology("p100_node")


def test_dense_layers_are_split_by_channels_and_all_others_by_samples() -> None:
    graph = lenet(samples=8)
    splits = one_weird_trick(graph, RULES, 4)
    kinds = {operator.kind: split.degrees for operator, split in zip(graph.operators, splits, strict=True)}
    assert kinds["conv2d"] == kinds["max_pool2d"] == (4, 1, 1, 1)
    assert kinds["reshape"] == (4, 1)
    assert kinds["linear"] == (1, 4)
    assert kinds["cross_entropy"] == (4,)


def test_what_changes_results_of_a_dense_layer_one_by_one_keeps_its_split() -> None:
    build = Builder()
    x = build.linear(build.bring(8, 16), 32)
    x = build.add("dropout", [build.pointwise(x)], (8, 32))[0]
    graph = build.graph(build.linear(x, 12))
    splits = one_weird_trick(graph, RULES, 4)
    assert [split.degrees for split in splits[:4]] == [(1, 4)] * 4


def test_activations_between_dense_layers_are_sent_once() -> None:
    graph = perceptron(samples=8, sizes=(64, 128, 16))
    tasks = tasks_of(model_of(graph, NODE), one_weird_trick(graph, RULES, 4))
    of_hidden = [task for task in of_kind(tasks, TaskKind.TRANSFER) if task.owner < 2]
    assert len(of_hidden) == 4 * 3
    assert {graph.operators[task.owner].kind for task in of_hidden} == {"pointwise"}


def test_a_sum_of_a_dense_layer_and_something_else_stays_split_by_samples() -> None:
    build = Builder()
    x = build.bring(8, 32)
    graph = build.graph(build.pointwise(x, build.linear(x, 32)))
    assert one_weird_trick(graph, RULES, 4)[1].degrees == (4, 1)
