"""The machine of the paper: one processor, and some of its GPUs."""

from bow.errors import SettingError
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link

PROCESSOR = 0
"""The number of the processor."""

HASWELL = DeviceKind("haswell", memory_gib=50.0, tflops=0.93, gb_per_s=48.0, overhead_us=5.0, half_outputs=1152)
"""18 cores at 2.3 GHz: 70 % of 1.32 TFLOP/s (two products and sums of eight numbers a cycle and core) and of 68 GB/s.

The paper allows 50 GB of memory. Four results for each arithmetic unit reach half the speed, as in the topologies that
come with bow; a call of an operator costs half of what starting a kernel does.
"""

K80 = DeviceKind("k80", memory_gib=11.17, tflops=3.0, gb_per_s=168.0, overhead_us=10.0, half_outputs=9984)
"""One of the two GPUs of a board, as in the topologies that come with bow; 11.17 of its 12 GB are left to programs."""

PCIE_GB_PER_S, PCIE_LATENCY_US = 12.0, 4.0
"""PCIe 3.0 x16, between GPUs."""

HOST_GB_PER_S, HOST_LATENCY_US = 6.0, 8.0
"""Between processor and GPUs: a copy goes through memory that the GPU reaches first, and all GPUs share the way.

Mirhoseini et al., 2017, section 4.5: copies between a GPU and a CPU are in general slower than between GPUs.
"""

BOARDS = 2
"""GPUs of one board share its way to the processor."""


def k80_machine(gpus: int, memory_gib: float = K80.memory_gib, copies: float = 1.0) -> DeviceTopology:
    """A processor, device 0, and K80 GPUs, two to a board.

    Example:
        >>> machine = k80_machine(4)
        >>> [device.name for device in machine.devices]
        ['cpu', 'gpu0', 'gpu1', 'gpu2', 'gpu3']
        >>> machine.transfer_ns(10**6, 0, 1) > machine.transfer_ns(10**6, 1, 2)
        True

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 4.1.
    """
    if gpus < 1:
        raise SettingError(f"gpus must be at least 1, got {gpus}")
    if not copies > 0:
        raise SettingError(f"copies must be above 0, got {copies}; 1 is the data sheets' time")
    kind = DeviceKind(K80.name, memory_gib, K80.tflops, K80.gb_per_s, K80.overhead_us, K80.half_outputs)
    boards = [f"board{number}" for number in range(-(-gpus // BOARDS))]
    devices = [Device("cpu", HASWELL), *(Device(f"gpu{number}", kind) for number in range(gpus))]

    def link(ends: tuple[str, str], latency_us: float, gb_per_s: float) -> Link:
        return Link(ends, latency_us * copies, gb_per_s / copies)

    of_gpus = [
        link((f"gpu{number}", boards[number // BOARDS]), PCIE_LATENCY_US, PCIE_GB_PER_S) for number in range(gpus)
    ]
    of_boards = [link((board, "host"), PCIE_LATENCY_US, PCIE_GB_PER_S) for board in boards]
    to_processor = link(("cpu", "host"), HOST_LATENCY_US, HOST_GB_PER_S)
    links = (*of_gpus, *of_boards, to_processor)
    name = f"haswell with {gpus} k80"
    return DeviceTopology(name, tuple(devices), links, (*boards, "host"))
