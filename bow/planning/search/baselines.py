"""Baseline and starting partitions: single device, data and model parallel, expert designs, random."""

import random
from collections.abc import Callable, Mapping, Sequence

from bow.errors import SettingError
from bow.planning.problem.box import whole
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.partition import Split, everything_on, whole_on, why_invalid
from bow.planning.rules.rule import Kind, Rules
from bow.planning.search.optcnn import optcnn
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace


def split_along(
    graph: OperatorGraph, rules: Rules, operator: PlanOperator, kind: Kind, devices: Sequence[int]
) -> Split | None:
    """Split an operator along its first dimension of a kind; None if there is none."""
    dimensions = rules.dimensions(operator, graph)
    at = next((at for at, dimension in enumerate(dimensions) if dimension.kind == kind and dimension.size > 1), None)
    if at is None:
        return None
    degree = min(len(devices), dimensions[at].size)
    degrees = tuple(degree if place == at else 1 for place in range(len(dimensions)))
    return Split(degrees, tuple(devices[:degree]))


def data_parallel(graph: OperatorGraph, rules: Rules, num_devices: int) -> tuple[Split, ...]:
    """Split every operator by samples over all devices; operators without a sample dimension run on the first one."""
    devices = range(num_devices)
    return tuple(
        split_along(graph, rules, operator, "S", devices) or whole_on(graph, operator, 0)
        for operator in graph.operators
    )


def single(problem: Problem) -> tuple[Split, ...]:
    """Put everything on one device: of all kinds the fastest one that has the memory."""
    found = [everything_on(problem.graph, device) for device in problem.topology.of_each_kind]
    if len(found) == 1:
        return found[0]

    def rank(splits: tuple[Split, ...]) -> tuple[bool, int]:
        simulated = problem.simulation(splits, must_fit=False)
        return simulated.refusal is not None, simulated.makespan_ns

    return min(found, key=rank)


def model_parallel(problem: Problem) -> tuple[Split, ...]:
    """Assign consecutive layers to devices, balancing their computing time."""
    graph, num_devices = problem.graph, problem.topology.num_devices
    boxes = [whole(graph.output_shape(operator)) for operator in graph.operators]
    times = [problem.costs.tile_time(number, box, 0).total_ns for number, box in enumerate(boxes)]
    layers = [operator.layer or operator.name for operator in graph.operators]
    of_layer = dict.fromkeys(layers, 0)
    for layer, time in zip(layers, times, strict=True):
        of_layer[layer] += time
    total, passed, places = max(sum(times), 1), 0, dict[str, int]()
    for layer, time in of_layer.items():
        places[layer] = min(num_devices - 1, num_devices * (2 * passed + time) // (2 * total))
        passed += time
    return tuple(
        whole_on(graph, operator, places[layer]) for operator, layer in zip(graph.operators, layers, strict=True)
    )


DENSE = frozenset({"linear", "matmul"})  # dense operator kinds, if they have weights
KEEPING = frozenset({"pointwise", "dropout"})  # elementwise; keep the split of a preceding dense layer
RECURRENT = frozenset({"lstm_cell", "lstm"})  # kinds that make a network recurrent


def expert(problem: Problem) -> tuple[Split, ...]:
    graph, rules, topology = problem.graph, problem.rules, problem.topology
    if any(operator.kind in RECURRENT for operator in graph.operators):
        return layer_per_device(graph, rules, topology)
    return one_weird_trick(graph, rules, topology.num_devices)


def one_weird_trick(graph: OperatorGraph, rules: Rules, num_devices: int) -> tuple[Split, ...]:
    """Data parallel, except dense layers, which are split by channels over all devices."""
    # Elementwise successors of a dense layer keep its split, so that only the next layer's input is sent.
    devices = range(num_devices)
    splits = list(data_parallel(graph, rules, num_devices))
    by_channel: dict[int, Split] = {}
    for number, operator in enumerate(graph.operators):
        split = None
        if operator.kind in DENSE and operator.weights:
            split = split_along(graph, rules, operator, "P", devices)
        elif operator.kind in KEEPING:
            split = _kept(graph, operator, by_channel)
        if split is not None and why_invalid(graph, operator, split, num_devices, rules) is None:
            splits[number] = split
            by_channel.update(dict.fromkeys(operator.outputs, split))
    return tuple(splits)


def _kept(graph: OperatorGraph, operator: PlanOperator, by_channel: Mapping[int, Split]) -> Split | None:
    """Return the common split of an elementwise operator's inputs; None if they differ in split or shape."""
    splits = {by_channel.get(tensor) for tensor in operator.inputs}
    shapes = {graph.tensors[tensor].shape for tensor in operator.inputs}
    return splits.pop() if len(splits) == 1 and shapes == {graph.output_shape(operator)} else None


def layer_per_device(graph: OperatorGraph, rules: Rules, topology: DeviceTopology) -> tuple[Split, ...]:
    """Data parallel between machines; within one, all operators of a layer run on the same device."""
    # Operators without weights are placed with the last layer they depend on.
    per_node = min(map(len, topology.nodes))
    depths = _depths(graph)
    layers = 1 + max(depths, default=0)
    splits = []
    for operator, depth in zip(graph.operators, depths, strict=True):
        devices = [node[depth * per_node // layers] for node in topology.nodes]
        splits.append(split_along(graph, rules, operator, "S", devices) or whole_on(graph, operator, devices[0]))
    return tuple(splits)


def _depths(graph: OperatorGraph) -> list[int]:
    numbers: dict[str, int] = {}
    for operator in graph.operators:
        if operator.weights:
            numbers.setdefault(operator.layer or operator.name, len(numbers))
    depths: list[int] = []
    for operator in graph.operators:
        before = max((depths[maker] for maker in graph.sources(operator)), default=0)
        depths.append(numbers[operator.layer or operator.name] if operator.weights else before)
    return depths


ATTEMPTS = 100  # partitions drawn to find one that fits

BASELINES: Mapping[str, Callable[[Problem], tuple[Split, ...]]] = {
    "single": single,
    "data": lambda problem: data_parallel(problem.graph, problem.rules, problem.topology.num_devices),
    "model": model_parallel,
    "expert": expert,
    "optcnn": optcnn,
}  # partitions without search, by name; for one learner on all devices


def baseline(problem: Problem, name: str) -> tuple[Split, ...]:
    if name not in BASELINES:
        raise SettingError(f"there is no baseline {name!r}; use one of {', '.join(BASELINES)}")
    return BASELINES[name](problem)


def random_partition(problem: Problem, space: SplitSpace, source: random.Random) -> tuple[Split, ...]:
    """Draw up to `ATTEMPTS` partitions until one fits into memory; return the last one drawn."""
    for _ in range(ATTEMPTS - 1):
        splits = space.random_partition(source)
        if problem.simulation(splits, must_fit=False).refusal is None:
            return splits
    return space.random_partition(source)
