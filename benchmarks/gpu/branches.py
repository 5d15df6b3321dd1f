"""Which stream runs which operator as TensorFlow decides it for several stream groups: a baseline."""

from collections import Counter
from collections.abc import Sequence

from bow.graph import StepGraph
from bow.runtime.local import operators_of
from bow.schedule import OrderedSchedule


def branch_schedule(graph: StepGraph, num_streams: int) -> OrderedSchedule:
    """What TensorFlow's placement makes of a step graph: operators by `place_branches`, in the order of capture.

    Parameters, buffers, the tensors of the batch and constants are nodes without inputs, as they are in TensorFlow,
    right in front of the first operator that reads them. A view is no node: it lies where what it looks at lies.

    References:
        Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019, section 4.1.1.
    """
    inputs: list[list[int]] = []  # by node
    node_of_value: dict[int, int] = {}
    node_of_operator: list[int] = []
    for operator in operators_of(graph):
        for value in operator.reads:
            if value not in node_of_value:
                node_of_value[value] = len(inputs)
                inputs.append([])
        if operator.is_view:
            node = node_of_value[operator.reads[0]]
        else:
            node = len(inputs)
            inputs.append([node_of_value[value] for value in operator.reads])
        node_of_value.update({value: node for value in operator.results if value is not None})
        node_of_operator.append(node)
    placed = place_branches(inputs, num_streams)
    lanes: list[list[int]] = [[] for _ in range(num_streams)]
    for index, node in enumerate(node_of_operator):
        lanes[placed[node]].append(index)
    return OrderedSchedule((1,) * num_streams, tuple(tuple(lane) for lane in lanes))


def place_branches(inputs: Sequence[Sequence[int]], num_streams: int) -> list[int]:
    """Spread the branches of a graph over streams, round-robin.

    * A node without inputs goes to a new stream.
    * Any other node goes to the stream of one of its inputs, the first that will do, so that neither has to wait.
    * An input that many nodes take will not do: its consumers go to new streams, so that they can run in parallel.

    A new stream is the next one in turn. The paper puts the last rule as if the node that has many neighbours went to
    the new stream itself. Its consumers run in parallel only if they do not follow it, and that is what TensorFlow sees
    to. What it takes for many is more than one; a consumer that takes an output twice counts twice.

    This is a baseline: networks have few branches, and every constant opens one more.

    Example:
        A constant, a chain of two behind it, and two branches that meet again:

        >>> place_branches([(), (0,), (1,), (2,), (2,), (3, 4)], num_streams=3)
        [0, 0, 0, 1, 2, 1]

    References:
        Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019, section 4.1.1.
    """
    consumers = Counter(source for sources in inputs for source in sources)
    placed: list[int] = []
    opened = 0
    for sources in inputs:
        own = next((source for source in sources if consumers[source] == 1), None)
        if own is None:
            placed.append(opened % num_streams)
            opened += 1
        else:
            placed.append(placed[own])
    return placed
