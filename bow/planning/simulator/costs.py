"""How long tiles take on devices that nobody has measured."""

from bow.planning.problem.box import Box
from bow.planning.problem.device_topology import DeviceKind, DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.rules.rule import Rules
from bow.planning.simulator.tile_work import PassWork, TileWork, tile_work

NS_PER_S = 1e9

UPDATE_PASSES = 5
"""Over how many times its weights' bytes an update goes: SGD with momentum reads three tensors and writes two."""


class RooflineCosts:
    """Times from a device's arithmetic, memory and overhead.

        time = kernels * overhead + max(flops * (1 + half_outputs / outputs) / flops_per_s, bytes / bytes_per_s)

    A tile reads all of the weights that it needs, so that splitting a product by samples reads them once for each tile,
    and splitting it by its parameters reads them once in all. Tiles with few results keep a device's units waiting:
    at `half_outputs` results a product runs at half its speed. Views take no time.

    Args:
        graph: whose operators run.
        rules: that are known.
        topology: the devices.

    References:
        Williams, Waterman, Patterson: Roofline, an insightful visual performance model, 2009. Jia, Zaharia, Aiken,
        2018, section 8.2.1: the matrix products of NMT take 38 % less time in all split by channels than by samples.
    """

    def __init__(self, graph: OperatorGraph, rules: Rules, topology: DeviceTopology) -> None:
        self._graph, self._rules, self._topology = graph, rules, topology
        self._works: dict[tuple[int, Box], TileWork] = {}

    def forward_ns(self, operator: int, box: Box, device: int) -> int:
        """How long the forward pass of a tile takes."""
        work = self._work(operator, box)
        return _time_ns(work.forward, work.outputs, self._topology.devices[device].kind)

    def backward_ns(self, operator: int, box: Box, device: int) -> int:
        """How long the backward pass of a tile takes."""
        work = self._work(operator, box)
        return _time_ns(work.backward, work.outputs, self._topology.devices[device].kind)

    def update_ns(self, weight_bytes: int, device: int) -> int:
        """How long it takes to update weights of so many bytes."""
        kind = self._topology.devices[device].kind
        return _time_ns(PassWork(0.0, UPDATE_PASSES * weight_bytes, 1 if weight_bytes else 0), 1, kind)

    def _work(self, operator: int, box: Box) -> TileWork:
        key = operator, box
        if key not in self._works:
            self._works[key] = tile_work(self._graph, self._rules, self._graph.operators[operator], box)
        return self._works[key]


def _time_ns(part: PassWork, outputs: int, kind: DeviceKind) -> int:
    if not part.kernels:
        return 0
    arithmetic_s = part.flops * (1 + kind.half_outputs / max(outputs, 1)) / (kind.tflops * 1e12)
    memory_s = part.num_bytes / (kind.gb_per_s * 1e9)
    return round(part.kernels * kind.overhead_us * 1e3 + max(arithmetic_s, memory_s) * NS_PER_S)
