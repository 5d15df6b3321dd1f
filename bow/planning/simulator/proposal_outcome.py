"""What becomes of a proposal that is not simulated to its end."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class TooLarge:
    """A device has too little memory for it.

    Attributes:
        device: its number.
        needed_bytes: the most that it would need at a time.
    """

    device: int
    needed_bytes: int


@dataclass(frozen=True)
class TooSlow:
    """It takes longer than anybody wanted to know.

    Attributes:
        least_ns: a time that it takes at least.
    """

    least_ns: int


ProposalOutcome: TypeAlias = TooLarge | TooSlow | None
"""None: it was simulated, and waits for being accepted or undone; else it is undone already."""
