"""A machine with many small cores, as a formula: what the papers' Xeon Phi does, for those who have none."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.cost_models.scaling import KNIGHTS_LANDING, Scaling, Sort, sort_of
from bow.errors import SettingError
from bow.schedule.climbing import Threads


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
