"""What a method of placing may spend."""

import math
from dataclasses import dataclass

from bow.errors import SettingError


@dataclass(frozen=True)
class Budget:
    """What a method of placing may spend; it ends when either is used up.

    Attributes:
        seconds: of time; None: any.
        placements: so many may be looked at; None: any.

    Raises:
        SettingError: a value outside its range, or no limit at all.
    """

    seconds: float | None = None
    placements: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.placements is None:
            raise SettingError("a budget without seconds and placements never ends; give one of them")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise SettingError(f"seconds must be finite and above 0, got {self.seconds}")
        if self.placements is not None and self.placements < 1:
            raise SettingError(f"placements must be at least 1, got {self.placements}")

    def part(self, count: int) -> "Budget":
        """One of several equal parts.

        Example:
            >>> Budget(placements=10).part(3)
            Budget(seconds=None, placements=3)
        """
        return Budget(
            None if self.seconds is None else self.seconds / count,
            None if self.placements is None else max(1, self.placements // count),
        )
