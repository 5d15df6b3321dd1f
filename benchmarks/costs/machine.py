"""An analytic model of the papers' machine: operator times by number of threads. Pure numbers, no torch."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from benchmarks.harness import counted
from bow.errors import SettingError


@dataclass(frozen=True, order=True)
class Threads:
    """A case: number of threads of an operator, one per core, and whether two share a cache.

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, sections III-B and III-C.
    """

    threads: int
    shared: bool = False

    def __str__(self) -> str:
        return counted(self.threads, "thread") + (", two to a cache" if self.shared else "")


def placements(cores: int) -> tuple[tuple[Threads, ...], ...]:
    """All cases of a machine, ascending: first those with a cache per thread, then those with two threads per cache."""
    alone = tuple(map(Threads, range(1, (cores + 1) // 2 + 1)))
    sharing = tuple(Threads(threads, shared=True) for threads in range(2, cores + 1, 2))
    return (alone, sharing) if sharing else (alone,)


def cases(cores: int) -> tuple[Threads, ...]:
    """All cases of a machine: 68 for 68 cores of which every two share a cache."""
    return tuple(case for lane in placements(cores) for case in lane)


def evenly(chosen_from: Sequence[Sequence[Threads]], count: int) -> tuple[Threads, ...]:
    """Choose representative cases: equally many from every lane, each in the middle of an equal part of it.

    The remainder is assigned to the last lanes, which reach further.

    Example:
        >>> [str(case) for case in evenly(placements(68), 3)]
        ['18 threads', '18 threads, two to a cache', '52 threads, two to a cache']
    """
    each, rest = divmod(count, len(chosen_from))
    shares = [each + (index >= len(chosen_from) - rest) for index in range(len(chosen_from))]
    if count < 1 or any(share > len(lane) for share, lane in zip(shares, chosen_from, strict=True)):
        raise SettingError(f"count must be at least 1 and fit the {sum(map(len, chosen_from))} cases, got {count}")
    return tuple(
        lane[(2 * turn + 1) * len(lane) // (2 * share)]
        for share, lane in zip(shares, chosen_from, strict=True)
        for turn in range(share)
    )


@dataclass(frozen=True)
class Work:
    """The work of an operator, independent of the machine.

    Attributes:
        kind: such as `aten.mm.default`; known to `scaling_of`.
        flops: floating-point operations; a multiply-add counts as two.
        bytes_moved: size of inputs and outputs.
    """

    kind: str
    flops: float
    bytes_moved: float


Sort: TypeAlias = Literal["convolution", "input gradient", "weight gradient", "product", "reduction", "elementwise"]


@dataclass(frozen=True)
class Scaling:
    """Parameters of a sort of operators, for the formula of `Saturation`.

    Attributes:
        flops_per_s: of one thread.
        crowding_s: seconds for each pair of threads: starting and synchronising them.
        grain_s: smallest work per thread in seconds: more threads bring no gain.
        serial: fraction of the work that only one thread does.
        serial_s: constant seconds in which only one thread works.
        traffic: memory traffic if two threads share a cache, relative to separate caches: below 1 they share
            data, above 1 they evict each other's data.
    """

    flops_per_s: float
    crowding_s: float = 1e-9
    grain_s: float = 0.0
    serial: float = 0.002
    serial_s: float = 0.0
    traffic: float = 1.0


KNIGHTS_LANDING: Mapping[Sort, Scaling] = MappingProxyType(
    {
        # Rates and crowding of the three convolutions: fitted to Liu et al., 2019, Table II.
        "convolution": Scaling(34e9, crowding_s=0.16e-6, traffic=0.7),
        "input gradient": Scaling(30e9, crowding_s=0.28e-6, traffic=0.7),
        "weight gradient": Scaling(34e9, crowding_s=0.50e-6, traffic=0.7),
        # The grains: Tang et al., 2018, Figure 2.
        "product": Scaling(45e9, crowding_s=5e-9, grain_s=110e-6, traffic=0.7),
        "elementwise": Scaling(8e9, grain_s=2.7e-6, traffic=1.1),
        # In neither paper: between the two.
        "reduction": Scaling(8e9, crowding_s=5e-9, grain_s=5e-6, serial=0.01, traffic=1.1),
    }
)
"""A Xeon Phi 7250. Assumed, because not in the papers: shared parts, serial fractions, everything of reductions."""


_REDUCTIONS = ("norm", "pool", "sum", "mean", "softmax", "nll_loss", "amax", "var", "mse_loss", "cross_entropy")

_PRODUCTS = ("mm", "linear", "matmul", "attention")


def sort_of(kind: str) -> Sort:
    """Return the sort of an operator, from its name in PyTorch or TensorFlow.

    A `convolution_backward` computes the gradient of the weights if its name ends with `weight`, as in
    `aten.convolution_backward.default weight`, else that of the input.

    Example:
        >>> sort_of("aten.addmm.default"), sort_of("Conv2DBackpropFilter"), sort_of("aten.relu.default")
        ('product', 'weight gradient', 'elementwise')
    """
    name = kind.lower()
    if "conv" in name:
        if "backward" not in name and "backprop" not in name:
            return "convolution"
        return "weight gradient" if "weight" in name or "filter" in name else "input gradient"
    if any(part in name for part in _REDUCTIONS):
        return "reduction"
    return "product" if any(part in name for part in _PRODUCTS) else "elementwise"


@dataclass(frozen=True)
class Saturation:
    """Model of operator times on such a machine, by number of threads.

    With `A` seconds of arithmetic and `M` of memory traffic that one thread needs, and `n` threads:

        time = launch + serial_s + copied + serial (A + M)             one thread alone
               + (1 - serial) (A / m + traffic M / min(m, k))          shared by all
               + crowding n (n - 1)                                    threads that wait for each other

    where `m = min(n, (A + M) / grain)`, at least 1, is the number of threads with enough work, `k` the number that
    saturates the memory bandwidth, and `traffic` is 1 unless two threads share a cache. Time is convex in `n` per lane.
    The overhead has to be superlinear in `n`: with `a + b / n + c n`, Liu et al.'s convolution, fastest with 45
    threads, could lose at most 9 % with 68, but loses 11.1 %.

    Noise is a log-normal factor, drawn from the seed, the arguments, and the number of the run: a measurement
    always has the same time, independent of the order of measurements.

    The parameters were chosen once, by hand from a least-squares fit to Liu et al.'s Table II and from Tang et al.'s
    Figure 2; `evidence` has the deviations. Concurrent operators do not influence each other here.

    Attributes:
        cores: of the machine; every two share a cache.
        launch_s: seconds to launch an operator.
        thread_bytes_per_s: memory bandwidth of one thread.
        bytes_per_s: memory bandwidth of all.
        copy_bytes_per_s: rate at which one thread copies inputs and outputs; infinite: no copies.
        scalings: by sort of operator.
        noise: standard deviation of the logarithm of a time.
        seed: of the noise.

    Example:
        >>> machine = Saturation()
        >>> gemm = [machine.time_s(2 * 64 * 512 * 512, 1.3e6, "aten.mm.default", Threads(n)) for n in (1, 8, 32)]
        >>> [round(1e6 * seconds) for seconds in gemm]
        [881, 117, 121]

    References:
        Tang, Wang, Willke, Li: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 3.
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, section II-C.
        Gunther: A simple capacity model of massively parallel transaction systems, 1993: the crowding.
    """

    cores: int = 68
    launch_s: float = 5e-6
    thread_bytes_per_s: float = 10e9
    bytes_per_s: float = 400e9
    copy_bytes_per_s: float = math.inf
    scalings: Mapping[Sort, Scaling] = field(default_factory=lambda: KNIGHTS_LANDING)
    noise: float = 0.0
    seed: int = 0

    def time_s(self, flops: float, bytes_moved: float, kind: str, case: Threads, run: int = 0) -> float:
        scaling = self.scalings[sort_of(kind)]
        seconds = self.launch_s + bytes_moved / self.copy_bytes_per_s + self._work_s(flops, bytes_moved, scaling, case)
        return seconds * self._disturbance(flops, bytes_moved, kind, case, run)

    def _work_s(self, flops: float, bytes_moved: float, scaling: Scaling, case: Threads) -> float:
        arithmetic_s = flops / scaling.flops_per_s
        memory_s = bytes_moved / self.thread_bytes_per_s
        whole_s, busy = arithmetic_s + memory_s, float(case.threads)
        if scaling.grain_s:
            busy = min(busy, max(1.0, whole_s / scaling.grain_s))
        traffic = scaling.traffic if case.shared else 1.0
        streams = min(busy, max(1.0, self.bytes_per_s / self.thread_bytes_per_s))
        shared_s = arithmetic_s / busy + traffic * memory_s / streams
        crowding_s = scaling.crowding_s * case.threads * (case.threads - 1)
        return scaling.serial_s + scaling.serial * whole_s + (1 - scaling.serial) * shared_s + crowding_s

    def _disturbance(self, *key: object) -> float:
        if not self.noise:
            return 1.0
        return math.exp(random.Random(repr((self.seed, key))).gauss(0.0, self.noise))
