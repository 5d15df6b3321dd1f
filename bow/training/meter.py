"""Time and samples of a training."""

import time
from dataclasses import dataclass, field


@dataclass
class Meter:
    """Training time and samples, evaluation left out, and the steady part of both."""

    seconds: float = 0.0
    samples: int = 0
    steady_from: tuple[float, int] | None = None
    _started: float = field(default_factory=time.perf_counter)

    def resume(self) -> None:
        """Start counting time."""
        self._started = time.perf_counter()

    def pause(self) -> None:
        """Stop counting time."""
        self.seconds += time.perf_counter() - self._started

    @property
    def now(self) -> float:
        """Training seconds up to this moment, while time is counted."""
        return self.seconds + time.perf_counter() - self._started

    def mark_steady(self) -> None:
        """From here on training is warm."""
        self.steady_from = (self.now, self.samples)

    @property
    def throughput(self) -> float:
        """Samples per second of the steady part, or of all where there is none; while time is not counted."""
        seconds, samples = self.steady_from or (0.0, 0)
        if samples == self.samples:
            seconds, samples = 0.0, 0
        return (self.samples - samples) / max(self.seconds - seconds, 1e-9)
