"""What operators take, by number of threads."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bow.errors import ScheduleError

FORMAT = "bow profile"
VERSION = 1


@dataclass(frozen=True)
class OperatorTime:
    """How long an operator takes.

    Attributes:
        median_s: seconds.
        spread_s: between the quartiles.
        repeats: how often it was measured.
    """

    median_s: float
    spread_s: float
    repeats: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "OperatorTime":
        """What repeats come to; at least one.

        Example:
            >>> OperatorTime.of([3.0, 1.0, 2.0])
            OperatorTime(median_s=2.0, spread_s=1.0, repeats=3)
        """
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else (0.0, 0.0, 0.0)
        return cls(statistics.median(seconds), high - low, len(seconds))

    @classmethod
    def read(cls, median_s: Any, spread_s: Any, repeats: Any) -> "OperatorTime":
        """A time as it was written."""
        numbers = float(median_s), float(spread_s), float(repeats)
        if not (all(map(math.isfinite, numbers)) and min(numbers) >= 0 and numbers[2] >= 1):
            raise ValueError(f"{numbers} cannot have been measured")
        return cls(numbers[0], numbers[1], int(repeats))


@dataclass(frozen=True)
class Profile:
    """What every operator of a step graph takes on one machine.

    Attributes:
        names: by operator: what it is, such as `aten.mm.default`.
        modules: by operator: the module that it belongs to.
        times: by number of threads, by operator.
        hardware: the machine and the versions.

    Raises:
        ScheduleError: not every operator has a module, or a time for every number of threads.

    Example:
        >>> times = {1: (OperatorTime(3e-6, 0.0, 1),), 2: (OperatorTime(2e-6, 0.0, 1),)}
        >>> found = Profile(("aten.mm.default",), ("fc",), times, hardware="a machine")
        >>> found.threads, found.nanoseconds(2), found.curves()
        ((1, 2), [2000], [{1: 3000, 2: 2000}])
    """

    names: tuple[str, ...]
    modules: tuple[str, ...]
    times: Mapping[int, tuple[OperatorTime, ...]]
    hardware: str

    def __post_init__(self) -> None:
        for count in map(len, (self.modules, *self.times.values())):
            if count != len(self.names):
                raise ScheduleError(
                    f"the profile has {len(self.names)} operators and modules or times of {count}; measure again"
                )

    @property
    def step_s(self) -> dict[int, float]:
        """By number of threads: seconds of all operators, one after another."""
        return {threads: sum(time.median_s for time in self.times[threads]) for threads in self.threads}

    @property
    def threads(self) -> tuple[int, ...]:
        """The numbers of threads that were measured."""
        return tuple(sorted(self.times))

    def nanoseconds(self, threads: int) -> list[int]:
        """By operator, with so many threads, or with the most that were measured below."""
        measured = [count for count in self.threads if count <= threads]
        if not measured:
            raise ScheduleError(
                f"the profile has no times for {threads} threads or fewer, only for {self._listed()}; measure again"
            )
        return [round(time.median_s * 1e9) for time in self.times[measured[-1]]]

    def curves(self) -> list[dict[int, int]]:
        """By operator: nanoseconds by number of threads."""
        return [
            {threads: round(self.times[threads][index].median_s * 1e9) for threads in self.threads}
            for index in range(len(self.names))
        ]

    def longest(self, count: int, threads: int) -> list[int]:
        """The operators that take longest."""
        times = self.nanoseconds(threads)
        return sorted(range(len(times)), key=lambda index: (-times[index], index))[:count]

    def to_json(self) -> str:
        """The profile as JSON, with a version."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """The profile that `to_json` wrote."""
        try:
            read: Any = json.loads(text)
            is_profile = (read["format"], read["version"]) == (FORMAT, VERSION)
            times = {int(n): tuple(OperatorTime.read(**time) for time in own) for n, own in read["times"].items()}
            parts = tuple(map(str, read["names"])), tuple(map(str, read["modules"])), times, str(read["hardware"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ScheduleError(f"the profile is damaged ({type(error).__name__}: {error}); measure again") from error
        if not is_profile:
            raise ScheduleError(f'the text is not a "{FORMAT}" of version {VERSION}; measure again')
        return cls(*parts)

    def _listed(self) -> str:
        return ", ".join(map(str, self.threads)) or "none"
