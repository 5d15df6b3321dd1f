"""Partitions to start from and to compare with: single device, data and model parallel, experts', random."""

import random
from collections.abc import Callable, Mapping, Sequence

from bow.errors import SettingError
from bow.planning.problem.box import whole
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.partition import Split, everything_on, illegal, whole_on
from bow.planning.rules.rule import Kind, Rules
from bow.planning.search.optcnn import optcnn
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.costs import Costs


def split_along(
    graph: OperatorGraph, rules: Rules, operator: PlanOperator, kind: Kind, devices: Sequence[int]
) -> Split | None:
    """An operator split over devices along its first dimension of a kind; None where it has none that can be split."""
    dimensions = rules.dimensions(operator, graph)
    at = next((at for at, dimension in enumerate(dimensions) if dimension.kind == kind and dimension.size > 1), None)
    if at is None:
        return None
    degree = min(len(devices), dimensions[at].size)
    degrees = tuple(degree if place == at else 1 for place in range(len(dimensions)))
    return Split(degrees, tuple(devices[:degree]))


def data_parallel(graph: OperatorGraph, rules: Rules, num_devices: int) -> tuple[Split, ...]:
    """Every operator split by samples over all devices; what has no samples runs on the first one."""
    devices = range(num_devices)
    return tuple(
        split_along(graph, rules, operator, "S", devices) or whole_on(graph, operator, 0)
        for operator in graph.operators
    )


def model_parallel(graph: OperatorGraph, costs: Costs, num_devices: int) -> tuple[Split, ...]:
    """Layers over devices: in the order of the graph, every device gets layers that take an equal share of the time."""
    boxes = [whole(graph.output_shape(operator)) for operator in graph.operators]
    times = [costs.tile_time(number, box, 0).total_ns for number, box in enumerate(boxes)]
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


DENSE = frozenset({"linear", "matmul"})  # kinds of operators that are densely connected, where they have weights
KEEPING = frozenset({"pointwise", "dropout"})
"""Kinds of operators that stay with the tiles of the dense layer whose results they change one by one."""

RECURRENT = frozenset({"lstm_cell", "lstm"})  # kinds of operators that make a network a recurrent one


def expert(graph: OperatorGraph, rules: Rules, topology: DeviceTopology) -> tuple[Split, ...]:
    """What experts do with a network of this sort."""
    if any(operator.kind in RECURRENT for operator in graph.operators):
        return layer_per_device(graph, rules, topology)
    return one_weird_trick(graph, rules, topology.num_devices)


def one_weird_trick(graph: OperatorGraph, rules: Rules, num_devices: int) -> tuple[Split, ...]:
    """Data parallel, but for densely connected layers, which are split by their channels over all devices."""
    # What follows a dense layer keeps its split, so that only what the next layer reads is sent.
    devices = range(num_devices)
    splits = list(data_parallel(graph, rules, num_devices))
    by_channel: dict[int, Split] = {}
    for number, operator in enumerate(graph.operators):
        split = None
        if operator.kind in DENSE and operator.weights:
            split = split_along(graph, rules, operator, "P", devices)
        elif operator.kind in KEEPING:
            split = _kept(graph, operator, by_channel)
        if split is not None and illegal(graph, operator, split, num_devices, rules) is None:
            splits[number] = split
            by_channel.update(dict.fromkeys(operator.outputs, split))
    return tuple(splits)


def _kept(graph: OperatorGraph, operator: PlanOperator, by_channel: Mapping[int, Split]) -> Split | None:
    """The split of the tensors that an operator changes one by one; None where there are several, or other shapes."""
    splits = {by_channel.get(tensor) for tensor in operator.inputs}
    shapes = {graph.tensors[tensor].shape for tensor in operator.inputs}
    return splits.pop() if len(splits) == 1 and shapes == {graph.output_shape(operator)} else None


def layer_per_device(graph: OperatorGraph, rules: Rules, topology: DeviceTopology) -> tuple[Split, ...]:
    """Data parallel between the machines; within one, all operators of a layer are on the same device."""
    # An operator without weights goes with the last layer that it depends on.
    per_node = min(map(len, topology.nodes))
    depths = _depths(graph)
    layers = 1 + max(depths, default=0)
    splits = []
    for operator, depth in zip(graph.operators, depths, strict=True):
        devices = [node[depth * per_node // layers] for node in topology.nodes]
        splits.append(split_along(graph, rules, operator, "S", devices) or whole_on(graph, operator, devices[0]))
    return tuple(splits)


def _depths(graph: OperatorGraph) -> list[int]:
    """By operator: the number of the layer that it goes with."""
    numbers: dict[str, int] = {}
    for operator in graph.operators:
        if operator.weights:
            numbers.setdefault(operator.layer or operator.name, len(numbers))
    depths: list[int] = []
    for operator in graph.operators:
        before = max((depths[maker] for maker in graph.sources(operator)), default=0)
        depths.append(numbers[operator.layer or operator.name] if operator.weights else before)
    return depths


ATTEMPTS = 100  # so many partitions are drawn for one that fits

BASELINES: Mapping[str, Callable[[Problem], tuple[Split, ...]]] = {
    "single": lambda problem: everything_on(problem.graph),
    "data": lambda problem: data_parallel(problem.graph, problem.rules, problem.topology.num_devices),
    "model": lambda problem: model_parallel(problem.graph, problem.costs, problem.topology.num_devices),
    "expert": lambda problem: expert(problem.graph, problem.rules, problem.topology),
    "optcnn": lambda problem: optcnn(problem.graph, problem.rules, problem.topology, problem.costs),
}  # partitions that need no search, by name: of one learner with all devices of the problem


def baseline(problem: Problem, name: str) -> tuple[Split, ...]:
    if name not in BASELINES:
        raise SettingError(f"there is no baseline {name!r}; take one of {', '.join(BASELINES)}")
    return BASELINES[name](problem)


def random_partition(problem: Problem, space: SplitSpace, source: random.Random) -> tuple[Split, ...]:
    """A partition drawn at random that fits the devices' memory, if one of some does."""
    for _ in range(ATTEMPTS - 1):
        splits = space.random_partition(source)
        if problem.simulation(splits, must_fit=False).refusal is None:
            return splits
    return space.random_partition(source)
