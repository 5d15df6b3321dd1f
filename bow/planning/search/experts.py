"""Strategies that experts have designed: for convolutional networks, and for recurrent ones."""

from collections.abc import Mapping

from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.split import Split, illegal
from bow.planning.rules.rule import Rules
from bow.planning.search.baselines import data_parallel, split_along, whole_on

DENSE = frozenset({"linear", "matmul"})
"""Kinds of operators that are densely connected, where they have weights."""

KEEPING = frozenset({"pointwise", "dropout"})
"""Kinds of operators that stay with the tiles of the dense layer whose results they change one by one."""

RECURRENT = frozenset({"lstm_cell", "lstm"})
"""Kinds of operators that make a network a recurrent one."""


def expert(graph: OperatorGraph, rules: Rules, topology: DeviceTopology) -> tuple[Split, ...]:
    """What experts do with a network of this sort.

    References:
        Jia, Zaharia, Aiken, 2018, section 8.2.1.
    """
    if any(operator.kind in RECURRENT for operator in graph.operators):
        return layer_per_device(graph, rules, topology)
    return one_weird_trick(graph, rules, topology.num_devices)


def one_weird_trick(graph: OperatorGraph, rules: Rules, num_devices: int) -> tuple[Split, ...]:
    """Data parallel, but for densely connected layers, which are split by their channels over all devices.

    Activations and dropout behind a dense layer keep its split, so that only what the next layer reads is sent.

    References:
        Krizhevsky: One weird trick for parallelizing convolutional neural networks, 2014.
    """
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
    """Data parallel between the machines; within one, all operators of a layer are on the same device.

    Layers are those with weights, in the order of the graph; an operator without weights goes with the last layer that
    it depends on. The first layers share devices where there are more layers than devices.

    References:
        Wu et al.: Google's neural machine translation system, 2016, section 3.
    """
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
    makers = graph.makers
    for operator in graph.operators:
        depths.append(_depth(operator, numbers, makers, depths))
    return depths


def _depth(operator: PlanOperator, numbers: Mapping[str, int], makers: Mapping[int, int], depths: list[int]) -> int:
    if operator.weights:
        return numbers[operator.layer or operator.name]
    return max((depths[makers[tensor]] for tensor in operator.inputs if tensor in makers), default=0)
