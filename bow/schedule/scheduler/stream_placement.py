"""Which stream runs which node of a dataflow graph, as TensorFlow decides it for several stream groups."""

from collections import Counter
from collections.abc import Sequence

from bow.errors import ScheduleError


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
    if num_streams < 1:
        raise ScheduleError(f"num_streams must be at least 1, got {num_streams}")
    consumers = Counter(source for sources in inputs for source in sources)
    placed: list[int] = []
    opened = 0
    for node, sources in enumerate(inputs):
        if not all(0 <= source < node for source in sources):
            raise ScheduleError(f"node {node} takes the output of node {max(sources)}; give nodes in topological order")
        own = next((source for source in sources if consumers[source] == 1), None)
        if own is None:
            placed.append(opened % num_streams)
            opened += 1
        else:
            placed.append(placed[own])
    return placed
