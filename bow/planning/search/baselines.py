"""Strategies that need no search: one device, data parallel, model parallel."""

from collections.abc import Sequence

from bow.planning.problem.box import whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.split import Split
from bow.planning.rules.rule import Kind, Rules
from bow.planning.simulator.task_costs import Costs


def whole_on(graph: OperatorGraph, operator: PlanOperator, device: int) -> Split:
    """An operator that is not split."""
    return Split((1,) * len(graph.output_shape(operator)), (device,))


def split_along(
    graph: OperatorGraph, rules: Rules, operator: PlanOperator, kind: Kind, devices: Sequence[int]
) -> Split | None:
    """An operator split over devices along its first dimension of a kind; None where it has none that can be split.

    Where the dimension is smaller than the number of devices, the last of them have no part of it.
    """
    dimensions = rules.dimensions(operator, graph)
    at = next((at for at, dimension in enumerate(dimensions) if dimension.kind == kind and dimension.size > 1), None)
    if at is None:
        return None
    degree = min(len(devices), dimensions[at].size)
    degrees = tuple(degree if place == at else 1 for place in range(len(dimensions)))
    return Split(degrees, tuple(devices[:degree]))


def single_device(graph: OperatorGraph, device: int = 0) -> tuple[Split, ...]:
    """Everything on one device."""
    return tuple(whole_on(graph, operator, device) for operator in graph.operators)


def data_parallel(graph: OperatorGraph, rules: Rules, num_devices: int) -> tuple[Split, ...]:
    """Every operator split by samples over all devices; what has no samples runs on the first one."""
    devices = range(num_devices)
    return tuple(
        split_along(graph, rules, operator, "S", devices) or whole_on(graph, operator, 0)
        for operator in graph.operators
    )


def model_parallel(graph: OperatorGraph, costs: Costs, num_devices: int) -> tuple[Split, ...]:
    """Layers over devices: in the order of the graph, every device gets layers that take an equal share of the time.

    The operators of a layer that is used again and again, such as the steps of an unrolled LSTM, stay together.
    """
    boxes = [whole(graph.output_shape(operator)) for operator in graph.operators]
    times = [costs.forward_ns(number, box, 0) + costs.backward_ns(number, box, 0) for number, box in enumerate(boxes)]
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
