"""Issued rounds that are pending on the device, and how the host handles those that have ended."""

import functools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bow.engines.cuda.context import StreamContext
from bow.engines.cuda.transfers import FINITE, SLOTS, Results
from bow.engines.outcome import Outcome


@dataclass
class IssuedRound:
    """A round that has been issued."""

    active: list[bool]  # which learners have a batch; where learners take batches as they come, which batches there are
    taken_by: Sequence[int] | None = None  # by batch, the learner that took it, where that is not the batch's own


@dataclass
class PendingRound:
    """A round that the host has not seen end."""

    round: int
    slot: int
    active: list[bool]
    restarted: bool  # whether the device itself restored weights of learners that diverged


@dataclass
class FinishedRound:
    """A round that the host has seen end."""

    values: Sequence[Sequence[float]]
    issued: IssuedRound
    round: int
    restarted: bool

    @functools.cached_property
    def diverged(self) -> set[int]:
        taken_by = self.issued.taken_by or range(len(self.issued.active))
        rows = enumerate(zip(self.issued.active, self.values, strict=True))
        return {taken_by[batch] for batch, (there, row) in rows if there and row[FINITE] == 0}

    def outcome(self, results: Results) -> Outcome:
        outcome = results.outcome(torch.tensor(self.values), self.issued.active)
        outcome.taken_by = self.issued.taken_by
        pairs = zip(self.issued.active, self.values, strict=True)
        outcome.healthy = [there and row[FINITE] != 0 for there, row in pairs]
        return outcome


class PendingRounds:
    """The rounds that the host has not seen end, at most `SLOTS`."""

    # Diverged learners restart when the host sees it, always the same number of rounds later, so that trainings repeat
    # exactly. With plain SGD and `SMA` the device restores weights at once.

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._rounds: deque[PendingRound] = deque()
        self._round_ended = [context.device.event(f"round of slot {slot} is over") for slot in range(SLOTS)]

    def make_room(self, rounds: int = 1) -> int:
        """Return the slot of the coming round, or of the first of several; waits for rounds that occupy them."""
        while len(self._rounds) > SLOTS - rounds:
            self._finish_oldest()
        return self._context.round_index % SLOTS

    def add(self, slot: int, active: list[bool]) -> None:
        """Record a round that was issued, up to the current end of the synchronisation stream."""
        self._context.order.sync_stream.record(self._round_ended[slot])
        restarted = self._context.stepping is not None
        self._rounds.append(PendingRound(self._context.round_index, slot, active, restarted))

    def finish_all(self) -> None:
        while self._rounds:
            self._finish_oldest()

    def catch_up(self) -> None:
        """Call `finish_all` outside of a call."""
        if not self._rounds:
            return
        with torch.no_grad(), self._context.device.issuing():
            self.finish_all()
            self._context.order.join()

    def act_on(self, rounds: Sequence[FinishedRound]) -> None:
        """Restart learners that diverged in any of these rounds, each once."""
        context = self._context
        diverged: set[int] = set()
        restarted = all(each.restarted for each in rounds)
        for each in rounds:
            bad = each.diverged - diverged
            if not each.diverged:
                if any(each.issued.active):  # not a round that all sit out
                    context.restarts.count_healthy()
            elif bad or each.restarted:
                context.restarts.count(each.outcome(context.results), each.round)
            diverged |= bad
        if diverged:
            which = [learner in diverged for learner in range(len(context.group))]
            with context.device.on(context.order.sync_stream):
                context.restarts.restart(which, weights=not restarted, written=True)
            context.order.learners_moved()

    def _finish_oldest(self) -> None:
        rounds = [self._finished()]
        if rounds[0].diverged:
            # Learners that have diverged since must not count as healthy, and none must restart twice.
            rounds += [self._finished() for _ in range(len(self._rounds))]
        self.act_on(rounds)

    def _finished(self) -> FinishedRound:
        over = self._rounds.popleft()
        self._round_ended[over.slot].synchronize()
        values = self._context.results.on_host(over.slot)
        return FinishedRound(values, IssuedRound(over.active), over.round, over.restarted)
