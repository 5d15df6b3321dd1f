"""Small graphs with names as capture gives them, and machines to place them on."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.placement_machine import k80_machine
from bow.planning.placement.groups import Group, Groups, SimulatedEvaluator
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import RooflineCosts


def made_of(*operators: tuple[str, str, Sequence[str]], size: int = 256, flops: float = 1e9) -> OperatorGraph:
    """Operators as (name, kind, names of whose outputs they read); "batch" is there already. A layer is what stands
    before the @ of a name; kinds of which some have weights have one in each layer."""
    numbers = {"batch": 0}
    tensors = {0: TensorShape((size,), differentiable=False)}
    weights: dict[str, TensorShape] = {}
    found = []
    for name, kind, reads in operators:
        numbers[name] = len(tensors)
        tensors[numbers[name]] = TensorShape((size,))
        layer = name.partition("@")[0]
        own = (f"{layer}.weight",) if kind in ("linear", "lstm_cell", "embedding", "conv2d") else ()
        weights.update({weight: TensorShape((size,)) for weight in own})
        inputs = tuple(numbers[each] for each in reads)
        work = flops if own and kind != "embedding" else 0.0
        found.append(
            PlanOperator(name, f"my_{kind}" if kind == "x" else kind, inputs, (numbers[name],), own, {}, work, layer)
        )
    return OperatorGraph(tuple(found), tensors, (0,), weights, len(tensors) - 1)


def every_operator(graph: OperatorGraph) -> Groups:
    """A group for each operator."""
    pairs = enumerate(graph.operators)
    return Groups(graph, tuple(Group(each.name, each.kind, (n,), each.layer or each.name) for n, each in pairs))


def unrolled(steps: int = 4, layers: int = 2) -> OperatorGraph:
    """A language model: lookups, cells, predictions and their losses, in the names of a captured one."""
    operators: list[tuple[str, str, Sequence[str]]] = []
    call = lambda name, step: f"{name}@{step}" if step else name  # noqa: E731
    for step in range(steps):
        operators.append((call("embedding", step), "embedding", ["batch"]))
    for layer in range(layers):
        for step in range(steps):
            below = call(f"lstm.cells.{layer - 1}", step) if layer else call("embedding", step)
            before = [call(f"lstm.cells.{layer}", step - 1)] if step else []
            operators.append((call(f"lstm.cells.{layer}", step), "lstm_cell", [below, *before]))
    for step in range(steps):
        operators.append((call("output", step), "linear", [call(f"lstm.cells.{layers - 1}", step)]))
        operators.append((call("loss.cross", step), "x", [call("output", step)]))
    operators.append(("loss.stack", "x", [call("loss.cross", step) for step in range(steps)]))
    return made_of(*operators)


def evaluator(
    graph: OperatorGraph,
    groups: Groups | None = None,
    topology: DeviceTopology | None = None,
) -> SimulatedEvaluator:
    """On a processor and two GPUs, if nothing else is said; operators have no rule: they are whole."""
    topology = topology or k80_machine(2)
    rules = type(RULES)()
    problem = Problem(graph, rules, topology, RooflineCosts(graph, rules, topology))
    groups = groups or every_operator(graph)
    return SimulatedEvaluator(problem, groups, processors=(0,))
