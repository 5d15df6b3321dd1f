"""What people do: a layer for each device, or contiguous parts."""

from collections.abc import Iterable

from bow.planning.placement.evaluation import SimulatedEvaluator
from bow.planning.placement.groups import Devices, Groups
from bow.planning.search.baselines import RECURRENT

LAYERS = frozenset({"conv1d", "conv2d", "conv3d", "linear"})
"""Kinds of operators that count as layers of a network that is cut into contiguous parts."""


def expert(evaluator: SimulatedEvaluator) -> Devices:
    """What an expert does with a network of this sort; see `layer_per_device` and `contiguous_parts`.

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 4.2.
    """
    is_recurrent = any(evaluator.groups.with_kinds(RECURRENT))
    return (layer_per_device if is_recurrent else contiguous_parts)(evaluator)


def layer_per_device(evaluator: SimulatedEvaluator) -> Devices:
    """Each LSTM layer on an accelerator of its own, in turn where there are too few.

    An embedding goes with the LSTM layer that reads it; attention, softmax, and all that is left, with the highest
    LSTM layer, which is the last one in the order of the graph. An encoder's and a decoder's layers are layers of
    their own: with two devices both lower layers are on the first, and both upper ones on the second.

    References:
        Wu et al.: Google's neural machine translation system, 2016. Mirhoseini et al., 2017, section 4.2.
    """
    groups, devices = evaluator.groups, evaluator.accelerators
    cells = [number for number, held in enumerate(groups.with_kinds(RECURRENT)) if held]
    in_order = sorted(cells, key=lambda number: groups.groups[number].operators)
    layers = list(dict.fromkeys(groups.groups[number].layer for number in in_order))
    place = {layer: devices[number % len(devices)] for number, layer in enumerate(layers)}
    placed = {number: place[groups.groups[number].layer] for number in cells}
    read_by: dict[str, int] = {}
    for flow in groups.flows:
        if flow.reader in placed:
            read_by.setdefault(groups.groups[flow.maker].layer, placed[flow.reader])
    embedding = groups.with_kinds({"embedding"})
    highest = place[layers[-1]]
    return evaluator.legal(
        tuple(
            placed.get(number, read_by.get(group.layer, highest) if embedding[number] else highest)
            for number, group in enumerate(groups.groups)
        )
    )


def contiguous_parts(evaluator: SimulatedEvaluator) -> Devices:
    """Parts of about as many layers for each accelerator, cut in the order in which the groups run.

    References:
        Mirhoseini et al., 2017, section 4.2, on Inception-v3.
    """
    groups, devices = evaluator.groups, evaluator.accelerators
    layers = [_layers(groups, group.operators) for group in groups.groups]
    total, passed, placed = max(1, sum(layers)), 0, [0] * len(groups)
    for number in groups.order:
        middle = 2 * passed + layers[number]
        placed[number] = devices[min(len(devices) - 1, len(devices) * middle // (2 * total))]
        passed += layers[number]
    return evaluator.legal(placed)


def _layers(groups: Groups, operators: Iterable[int]) -> int:
    return sum(groups.graph.operators[number].kind in LAYERS for number in operators)
