"""What devices are to be given: how long each group takes on each, and how much a device can do."""

from collections.abc import Sequence

from bow.planning.placement.evaluation import SimulatedEvaluator
from bow.planning.problem.box import whole


def group_times_ns(evaluator: SimulatedEvaluator) -> list[list[int]]:
    """By device and group: how long forward and backward passes take, alone.

    Updates are left out: a layer has one, however many of its steps are on the device.
    """
    graph, costs = evaluator.problem.graph, evaluator.problem.costs
    boxes = [whole(graph.output_shape(operator)) for operator in graph.operators]
    times: list[list[int]] = []
    for device in range(evaluator.num_devices):
        of_group = [0] * len(evaluator.groups)
        for number, (group, box) in enumerate(zip(evaluator.groups.of, boxes, strict=True)):
            of_group[group] += costs.forward_ns(number, box, device) + costs.backward_ns(number, box, device)
        times.append(of_group)
    return times


def speeds(times: Sequence[Sequence[int]]) -> list[float]:
    """By device: how fast it does all groups, as a part of what all devices together can do.

    Example:
        >>> speeds([[30, 30], [10, 10]])
        [0.25, 0.75]
    """
    rates = [1 / max(1, sum(of_device)) for of_device in times]
    return [rate / sum(rates) for rate in rates]


def loads(times: Sequence[Sequence[int]], devices: Sequence[int], most: int) -> list[int]:
    """By group: how much work it is, in whole numbers up to a given one; at least 1.

    The work of a group is what it takes on the fastest of the devices.
    """
    fastest = min(devices, key=lambda device: sum(times[device]))
    largest = max(1, *times[fastest])
    return [max(1, round(most * time / largest)) for time in times[fastest]]


def traffic(evaluator: SimulatedEvaluator, most: int) -> dict[tuple[int, int], int]:
    """By pair of groups, the smaller number first: what crosses in both directions, as whole numbers; at least 1."""
    found: dict[tuple[int, int], int] = {}
    for flow in evaluator.groups.flows:
        pair = min(flow.maker, flow.reader), max(flow.maker, flow.reader)
        found[pair] = found.get(pair, 0) + flow.num_bytes
    largest = max(1, *found.values()) if found else 1
    return {pair: max(1, round(most * num_bytes / largest)) for pair, num_bytes in found.items()}
