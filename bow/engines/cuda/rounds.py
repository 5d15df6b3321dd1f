"""Rounds as the host knows them: issued, under way on the device, and heard of when they have ended."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bow.engines.cuda.results import FINITE, Results
from bow.engines.outcome import Outcome


@dataclass
class Issued:
    """A round that has been issued.

    Attributes:
        active: which learners have a batch; where learners take batches as they come, which batches there are.
        taken_by: by batch, the learner that took it, where that is not the batch's own.
    """

    active: list[bool]
    taken_by: Sequence[int] | None = None


@dataclass
class Heard:
    """A round that the host has seen end.

    Attributes:
        values: its results.
        issued: the round.
        round: which it is.
        restarted: whether the device has set back weights of learners that diverged already.
        diverged: who did.
    """

    values: Sequence[Sequence[float]]
    issued: Issued
    round: int
    restarted: bool
    diverged: set[int]

    @classmethod
    def of(cls, values: Sequence[Sequence[float]], issued: Issued, round_index: int, restarted: bool) -> "Heard":
        """Look who diverged."""
        pairs = enumerate(zip(issued.active, values, strict=True))
        bad = [batch for batch, (there, row) in pairs if there and row[FINITE] == 0]
        taken_by = issued.taken_by or range(len(issued.active))
        return cls(values, issued, round_index, restarted, {taken_by[batch] for batch in bad})

    @property
    def healthy(self) -> bool:
        """Whether nobody did."""
        return not self.diverged

    def outcome(self, results: Results) -> Outcome:
        """The round as others know it."""
        made = results.outcome(torch.tensor(self.values), self.issued.active)
        made.taken_by = self.issued.taken_by
        pairs = zip(self.issued.active, self.values, strict=True)
        made.healthy = [there and row[FINITE] != 0 for there, row in pairs]
        return made


@dataclass
class UnderWay:
    """A round that the device has yet to end, as far as the host knows."""

    round: int
    slot: int
    active: list[bool]
    restarted: bool
    """Whether weights of learners that diverged were set back on the device."""
