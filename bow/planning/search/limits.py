"""When a search ends."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bow.errors import SettingError
from bow.values import number, whole

GRACE = 20
"""No walk ends for want of success before so many proposals for each operator."""

Ending: TypeAlias = Literal["budget", "proposals", "no gain", "interrupted"]


@dataclass(frozen=True)
class Limits:
    """When a walk ends; whatever comes first.

    Attributes:
        budget_s: after so many seconds; None: never for that.
        proposals: after so many proposals; None: never for that.
        patience: when the best strategy has not got better for this part of the walk, in seconds, or in proposals where
            there is no budget in seconds; None: never for that. The paper has a half.
        grace: not for that before so many proposals; None: 20 for each operator.

    Raises:
        SettingError: a value outside its range, or no limit at all.
    """

    budget_s: float | None = None
    proposals: int | None = None
    patience: float | None = 0.5
    grace: int | None = None

    def __post_init__(self) -> None:
        if self.budget_s is None and self.proposals is None and self.patience is None:
            raise SettingError("a search without budget_s, proposals and patience never ends; give one of them")
        if self.budget_s is not None:
            number("budget_s", self.budget_s, above=0)
        if self.proposals is not None:
            whole("proposals", self.proposals, least=0)
        if self.patience is not None:
            number("patience", self.patience, above=0, most=1, remedy="0.5 is half of the search")

    def ending(self, seconds: float, proposals: int, best_s: float, best_at: int, operators: int) -> Ending | None:
        """Why a walk ends now; None: it goes on."""
        if self.budget_s is not None and seconds >= self.budget_s:
            return "budget"
        if self.proposals is not None and proposals >= self.proposals:
            return "proposals"
        grace = GRACE * operators if self.grace is None else self.grace
        if self.patience is not None and proposals >= grace:
            now, then = (proposals, best_at) if self.budget_s is None else (seconds, best_s)
            if now - then >= self.patience * now:
                return "no gain"
        return None
