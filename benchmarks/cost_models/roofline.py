"""Times of operators on hardware that is not there: peak and bandwidth."""

from dataclasses import dataclass

from bow.errors import SettingError


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
