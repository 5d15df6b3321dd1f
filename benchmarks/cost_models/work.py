"""What an operator has to do, and models that go by nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bow.errors import SettingError
from bow.schedule.climbing import Threads


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
