"""Deal batches and run rounds in groups; retry with fewer learners when memory runs out."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from bow.cluster import World
from bow.data import Deal
from bow.engines import Outcome
from bow.errors import DeviceMemoryError
from bow.training.batches import MAX_BYTES_TOGETHER, num_bytes, redistribute
from bow.training.checks import changes_told
from bow.training.context import RunContext
from bow.training.evaluation import Evaluations
from bow.training.replicas import Replicas
from bow.training.run_records import RunRecords
from bow.training.tuning import Watch

EVERY_S = 0.25  # approximate seconds between two exchanges
MOST_ROUNDS = 1000


class Decision(NamedTuple):
    """Outcome of an exchange, the same in all processes."""

    stop: bool  # whether the training ends after this round
    seconds: float  # training time on rank 0's clock
    hopeless: bool  # whether all learners of all devices have diverged
    checkpoint: bool  # whether a checkpoint is due


class Agreement:
    """Exchanges stop and checkpoint requests between processes, at rounds that all compute identically."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.next_round = 1  # after which the next exchange is due; the first one precedes the first round
        self._last: tuple[float, int] = (0.0, 0)

    def begin(self, seconds: float, round_index: int) -> None:
        self._last = seconds, round_index
        self.next_round = round_index

    def exchange(
        self, seconds: float, round_index: int, stop: bool, hopeless: bool = False, checkpoint: bool = False
    ) -> Decision:
        since, before = self._last
        wanted = 1  # until the duration of a round is known
        if round_index > before:
            per_round = max(seconds - since, 1e-6) / (round_index - before)
            wanted = min(MOST_ROUNDS, max(1, round(EVERY_S / per_round)))
        leads = self._world.leads
        own = [stop, wanted, seconds * leads, hopeless, checkpoint and leads]
        stops, rounds, leaders, without_hope, due = self._world.sum_numbers(list(map(float, own)))
        self._last = seconds, round_index
        self.next_round = round_index + max(1, int(rounds / self._world.size))
        return Decision(bool(stops), leaders, without_hope == self._world.size, bool(due))

    def signal_of(self, own: int | None) -> int | None:
        """Return the signal that any process has received, in all of them; SIGTERM takes precedence over SIGINT."""
        asked = [number for number in self._world.all_gather(own) if number is not None]
        return max(asked, default=None)


class Dealing:
    """Deals and runs groups of rounds that do not cross an epoch, a checkpoint or the end of the training."""

    def __init__(
        self, context: RunContext, records: RunRecords, agreement: Agreement, evaluations: Evaluations
    ) -> None:
        self._context = context
        self._position = context.position
        self._replicas = context.replicas
        self._is_watched = context.config.is_watched
        self._agreement = agreement
        self._evaluations = evaluations
        self._records = records
        self._looks = context.world.leads
        self.ended: list[tuple[Deal, Outcome]] = []  # of the last group, also if its next round failed

    @property
    def is_over(self) -> bool:
        steps = self._context.config.steps
        return steps is not None and self._position.round >= steps

    def ends_with(self, deals: Sequence[Deal]) -> bool:
        """Whether these rounds are the last ones, as far as is known before callbacks hear of them."""
        if (steps := self._context.config.steps) is not None:
            return self._position.round + len(deals) >= steps
        return self._context.stream.rounds_left(self._replicas.group.num_all) == 0

    def rounds_left(self) -> int | None:
        if (steps := self._context.config.steps) is not None:
            return max(steps - self._position.round, 0)
        return self._context.stream.rounds_left(self._replicas.group.num_all)

    def deal(self, most: int) -> list[Deal]:
        """Return the batches of the next group of at most so many rounds; empty at the end of the data."""
        deals: list[Deal] = []
        limit, room = min(most, self._rounds_together()), MAX_BYTES_TOGETHER
        while len(deals) < limit and room > 0:
            deal = self._context.stream.deal(self._replicas.group.num_all, self._replicas.group.own)
            if deal is None:
                break
            deals.append(deal)
            if deal.epochs > self._position.epoch:
                break
            room -= num_bytes(deal.batches) if limit > 1 else 0
        return deals

    def run(self, deals: Sequence[Deal], watch: Watch | None) -> list[tuple[Deal, Outcome]]:
        """Run rounds; in the second group of them, look for changes in Python."""
        looks = self._looks and self._position.meter.samples > 0
        if not looks or not isinstance(self._replicas, Replicas):
            return self._run(deals, watch)
        self._looks = False
        with changes_told(self._replicas.group.learners[0].module, self._records.warn_of):
            return self._run(deals, watch)

    def _run(self, deals: Sequence[Deal], watch: Watch | None) -> list[tuple[Deal, Outcome]]:
        """Run rounds, with fewer learners if the tuner has added one that does not fit in memory."""
        ran = self.ended = list[tuple[Deal, Outcome]]()
        left = list(deals)
        while left:
            before, learners = self._replicas.rounds, self._replicas.learners
            together = [deal.batches for deal in left]
            try:
                ran += zip(left, self._replicas.rounds_at_once(together), strict=True)
                break
            except Exception as error:
                ended, loop = left[: self._replicas.rounds - before], self._replicas.loop
                known = loop.ended[: len(ended)]  # none on devices with streams
                ran += zip(ended, known, strict=False)
                if watch is None or learners == 1 or not isinstance(error, DeviceMemoryError):
                    raise
                self._records.event("learners", watch.ran_out_of_memory(error))
            lost = torch.full((learners,), torch.nan, device=self._replicas.device)  # with the round that failed
            outcome = Outcome(lost, torch.ones_like(lost, dtype=torch.bool), [True] * learners)
            ran += [(deal, outcome) for deal in ended[len(known) :]]
            left = redistribute(left[len(ended) :], learners - 1)
        return ran

    def _rounds_together(self) -> int:
        config = self._context.config
        if self._is_watched:
            return 1
        limits = [self._replicas.loop.period]
        if config.steps is not None:
            limits.append(config.steps - self._position.round)
        if isinstance(config.run.checkpoint_every, int):
            limits.append(config.run.checkpoint_every - self._position.round % config.run.checkpoint_every)
        if not self._context.world.is_one:
            limits.append(self._agreement.next_round - self._position.round)
        if not self._context.world.is_one or self._replicas.loop.settings.engine.dispatch == "fixed":
            limits.append(self._evaluations.rounds_left())
        return min(limits)
