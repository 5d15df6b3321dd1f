"""Cost models from an operator's work and a machine as formulas: a roofline, and threads that saturate."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from benchmarks.cost_models.climbing import Threads
from bow.errors import SettingError


@dataclass(frozen=True)
class Work:
    """What an operator has to do, whatever it runs on.

    Attributes:
        kind: such as `aten.mm.default`; what `scaling_of` knows.
        flops: floating-point operations; a multiply-add counts as two.
        bytes_moved: of what it reads and makes.
    """

    kind: str
    flops: float
    bytes_moved: float

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_moved"):
            if not getattr(self, name) >= 0:
                raise SettingError(f"{name} must be at least 0, got {getattr(self, name)} for {self.kind}")

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0


class Analytic:
    """A cost model that computes times from work: no measurement.

    Example:
        >>> model = Analytic({"mm": Work("aten.mm.default", 2e9, 1e6)}, lambda work, case: work.flops / 1e9)
        >>> model.time_s("mm", Threads(1))
        2.0
    """

    def __init__(self, works: Mapping[str, Work], time: Callable[[Work, Threads], float]) -> None:
        self._works = dict(works)
        self._time = time

    def time_s(self, operator: str, case: Threads) -> float:
        """Seconds by the formula."""
        if operator not in self._works:
            raise SettingError(f"the work of {operator!r} is not known; name it among the works")
        return self._time(self._works[operator], case)


@dataclass(frozen=True)
class Roofline:
    """An operator takes as long as its arithmetic or its memory traffic, whichever is longer, and a start.

    `time = latency + max(flops / (peak * n / cores), bytes / (bandwidth * min(n, k) / k))` for `n` threads, where `k`
    threads are enough to use all of the bandwidth.

    Example:
        >>> machine = Roofline(1e12, 1e11, latency_s=1e-6, cores=4)
        >>> [round(1e6 * machine.time_s(2e6, 3e4, threads), 3) for threads in (1, 4)]
        [9.0, 3.0]

    References:
        Williams, Waterman, Patterson: Roofline: an insightful visual performance model for multicore architectures,
        2009.
    """

    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    cores: int = 1
    bandwidth_cores: int | None = None

    def __post_init__(self) -> None:
        for name in ("peak_flops_per_s", "bandwidth_bytes_per_s", "cores"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be above 0, got {getattr(self, name)}")
        if not self.latency_s >= 0:
            raise SettingError(f"latency_s must be at least 0, got {self.latency_s}")
        if self.bandwidth_cores is not None and not 1 <= self.bandwidth_cores <= self.cores:
            raise SettingError(
                f"bandwidth_cores must be at least 1 and at most {self.cores}, got {self.bandwidth_cores}"
            )

    def time_s(self, flops: float, bytes_moved: float, threads: int = 1) -> float:
        """Seconds that an operator takes."""
        if threads < 1:
            raise SettingError(f"threads must be at least 1, got {threads}")
        enough = self.bandwidth_cores or self.cores
        arithmetic_s = flops / self.peak_flops_per_s * self.cores / min(threads, self.cores)
        memory_s = bytes_moved / self.bandwidth_bytes_per_s * enough / min(threads, enough)
        return self.latency_s + max(arithmetic_s, memory_s)


Sort: TypeAlias = Literal["convolution", "input gradient", "weight gradient", "product", "reduction", "elementwise"]


@dataclass(frozen=True)
class Scaling:
    """Parameters of the operators of one sort; `Saturation` says what it makes of them.

    Attributes:
        flops_per_s: of one thread.
        crowding_s: seconds for each pair of threads: starting them, and their waiting for each other.
        grain_s: seconds of one thread's work that are worth a thread: further ones bring nothing.
        serial: part of the work that only one thread does.
        serial_s: seconds that only one thread works, however large the operator is.
        traffic: memory traffic where two threads share a cache, over that where none do: below 1 they use each
            other's data, above 1 they are in each other's way.
    """

    flops_per_s: float
    crowding_s: float = 1e-9
    grain_s: float = 0.0
    serial: float = 0.002
    serial_s: float = 0.0
    traffic: float = 1.0

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "traffic"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("crowding_s", "grain_s", "serial_s"):
            if not getattr(self, name) >= 0:
                raise SettingError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.serial < 1:
            raise SettingError(f"serial must be at least 0 and below 1, got {self.serial}")


KNIGHTS_LANDING: Mapping[Sort, Scaling] = MappingProxyType(
    {
        # Rates and crowding of the three convolutions: fitted to Liu et al., 2019, Table II.
        "convolution": Scaling(34e9, crowding_s=0.16e-6, traffic=0.7),
        "input gradient": Scaling(30e9, crowding_s=0.28e-6, traffic=0.7),
        "weight gradient": Scaling(34e9, crowding_s=0.50e-6, traffic=0.7),
        # The grains: Tang et al., 2018, Figure 2.
        "product": Scaling(45e9, crowding_s=5e-9, grain_s=110e-6, traffic=0.7),
        "elementwise": Scaling(8e9, grain_s=2.7e-6, traffic=1.1),
        # Neither paper shows one: between the two.
        "reduction": Scaling(8e9, crowding_s=5e-9, grain_s=5e-6, serial=0.01, traffic=1.1),
    }
)
"""A Xeon Phi 7250. What the papers do not show is chosen: shared parts, what is serial, all of reductions."""

_REDUCTIONS = ("norm", "pool", "sum", "mean", "softmax", "nll_loss", "amax", "var", "mse_loss", "cross_entropy")
_PRODUCTS = ("mm", "linear", "matmul", "attention")


def sort_of(kind: str) -> Sort:
    """The sort that an operator belongs to, by its name in PyTorch or TensorFlow.

    A `convolution_backward` computes the gradient of the weights if its name goes on with `weight`, as in
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
    """How long operators take on such a machine, by threads.

    With `A` seconds of arithmetic and `M` of memory traffic that one thread needs, and `n` threads:

        time = launch + serial_s + copied + serial (A + M)             one thread alone
               + (1 - serial) (A / m + traffic M / min(m, k))          shared by all
               + crowding n (n - 1)                                    threads that wait for each other

    where `m = min(n, (A + M) / grain)`, at least 1, is how many threads find enough to do, `k` how many use all of the
    memory's bandwidth, and `traffic` is 1 unless two threads share a cache. Time is convex in `n` within a lane. The
    overhead has to grow faster than `n`: with `a + b / n + c n`, Liu et al.'s convolution, which is fastest with 45
    threads, could lose at most 9 % with 68, and it loses 11.1 %.

    Noise is a factor whose logarithm is normal, drawn from the seed, the arguments, and the number of the run: the
    same measurement always gives the same time, in whatever order measurements are made.

    The parameters were chosen once, by hand from a least-squares fit to Liu et al.'s Table II and from Tang et al.'s
    Figure 2; `evidence` says what they miss by. Operators that run at the same time do not disturb each
    other here.

    Attributes:
        cores: of the machine; every two share a cache.
        launch_s: seconds before an operator begins.
        thread_bytes_per_s: memory bandwidth of one thread.
        bytes_per_s: memory bandwidth of all.
        copy_bytes_per_s: at which one thread copies what an operator reads and makes; infinite: nothing is copied.
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

    def __post_init__(self) -> None:
        for name in ("cores", "thread_bytes_per_s", "bytes_per_s", "copy_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("launch_s", "noise"):
            if not getattr(self, name) >= 0:
                raise SettingError(f"{name} must be at least 0, got {getattr(self, name)}")

    def time_s(self, flops: float, bytes_moved: float, kind: str, case: Threads, run: int = 0) -> float:
        """Seconds that an operator takes."""
        if case.threads > self.cores:
            raise SettingError(f"threads must be at most {self.cores}, the cores of this machine, got {case.threads}")
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
