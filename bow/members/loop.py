"""The rounds of a sweep: a queue of members, rows that are refilled, epochs, rules by which members end."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset, Subset, TensorDataset

from bow.devices import StreamDevice, available_cores
from bow.interruption import Interruption
from bow.members.cohort import Cohort
from bow.members.config import SweepConfig
from bow.members.feed import SharedSamples
from bow.members.member import Member, Progress
from bow.members.progress import SweepProgress
from bow.members.saving import SweepDirectory
from bow.members.stopping import Rungs
from bow.replicas import num_trainable
from bow.training.checkpoint import CheckpointTimer
from bow.training.checks import step_scheduler
from bow.training.evaluation import Evaluator
from bow.training.metrics import reached

MOST_ROWS = 16  # members that train at once where the sweep may choose: with more, small models gain nothing
MOST_ROUNDS = 1000


class SweepLoop:
    """A sweep in progress."""

    def __init__(
        self,
        config: SweepConfig,
        members: Sequence[Member],  # all of them, those included that have ended before
        waiting: Iterable[Progress],
        device: torch.device | StreamDevice,
        directory: SweepDirectory,
        progress: SweepProgress,
        elapsed_s: float = 0.0,  # before it was resumed, as rounds
        num_rounds: int = 0,
        ask: Callable[[], Progress | None] | None = None,  # a search for further ones, which it adds to `members`
    ) -> None:
        self._config = config
        self._members = members
        self._queue = deque(waiting)
        self._ask = ask
        self._device = device
        self._directory = directory
        self._progress = progress
        self._samples = SharedSamples(config.train.data)
        self._evaluators: dict[int, Evaluator] = {}
        self._began = time.perf_counter() - elapsed_s
        self._interruption = Interruption()
        self._cohort: Cohort | None = None
        self._cohort_kind: Hashable = None
        self._num_rounds = num_rounds
        self._num_samples = 0
        self._train_s = 0.0
        self._resumed = directory.engine
        self.engine = ""
        self.at_once = 0
        self._rungs: Rungs | None = None
        if config.halving is not None:
            self._rungs = Rungs(config.halving, members)
            self._queue = deque(self._rungs.admit(self._queue))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the sweep began, earlier parts included."""
        return time.perf_counter() - self._began

    @property
    def _paused(self) -> Sequence[Progress]:
        return () if self._rungs is None else list(self._rungs.paused.values())

    @property
    def throughput(self) -> float:
        return self._num_samples / max(self._train_s, 1e-9)

    @property
    def interrupted_by(self) -> int | None:
        return self._interruption.signal

    def go(self) -> None:
        try:
            self._progress.begin([*self._queue, *self._paused])
            with self._interruption.watched():
                while (self._queue or self._decide()) and self.interrupted_by is None:
                    self._train()
        finally:
            self._close_cohort()
            self._progress.close()
        waiting = [*self._queue, *self._paused]
        if not waiting and self._config.search is None:  # a sweep that has ended is known by its last checkpoint
            self._directory.save_checkpoint(self._num_rounds, [], self._members, self.elapsed_s)
        for progress in waiting:
            progress.member.stopped = "interrupted"
            if self._config.search is not None:
                self._config.search.tell(progress.member)

    def _open(self) -> Cohort:
        first = self._queue[0]
        alike = [each for each in self._queue if each.kind == first.kind]
        if self._cohort is not None and self._cohort_kind == first.kind:
            return self._cohort
        self._close_cohort()
        asked = self._config.at_once
        most = max(MOST_ROWS, len(available_cores())) if asked == "auto" else asked
        is_search = self._config.search is not None
        rows = most if is_search else min(len(alike), most)
        rounds = self._config.train.steps
        if rounds is None:
            rounds = self._samples.open(self._config, first.member.variant).rounds_left(1)
        in_all = None if rounds is None or is_search else rounds * (self._config.part_of or self._config.num_members)
        is_reused = len(alike) > rows or is_search or self._config.halving is not None
        self._cohort = Cohort(self._config, first, rows, self._device, self._samples, in_all, is_reused)
        self._cohort_kind = first.kind
        before, self._resumed = self._resumed, {}
        self._cohort.loop.load_engine(before.get(repr(first.kind), {}))
        self.at_once = max(self.at_once, rows)
        copies = rows + len(self._queue)
        self._timer = CheckpointTimer(3 * 4 * num_trainable(self._cohort.group.template) * copies, time.perf_counter())
        return self._cohort

    def _close_cohort(self) -> None:
        if self._cohort is not None:
            self._cohort.loop.close()
            self._cohort = None

    def _train(self) -> None:
        """Train the first member that waits and all of its kind, or until the sweep is asked to end."""
        cohort, began = self._open(), time.perf_counter()
        while True:
            self._fill(cohort)
            if all(row is None for row in cohort.rows):
                break
            self._round(cohort)
            if self._progress.is_due:
                self._progress.show([each for each in cohort.rows if each is not None], [*self._queue, *self._paused])
            if self.interrupted_by is not None or self._checkpoint_is_due():
                self._train_s += time.perf_counter() - began
                if self._config.search is None:
                    self._fill(cohort)  # so that who goes on finds members in this order
                    self._save(cohort)
                began = time.perf_counter()
                if self.interrupted_by is not None:
                    for row in [row for row, each in enumerate(cohort.rows) if each is not None]:
                        cohort.export(row)
                        self._queue.append(cohort.take(row))
                    break
        self._train_s += time.perf_counter() - began

    def _fill(self, cohort: Cohort) -> None:
        while None in cohort.rows:
            index = next((i for i, each in enumerate(self._queue) if each.kind == self._cohort_kind), None)
            if index is None:
                if not self._propose(len(cohort.rows) - cohort.rows.count(None), len(cohort.rows)):
                    return
                continue
            progress = self._queue[index]
            del self._queue[index]
            cohort.place(cohort.rows.index(None), progress)

    def _propose(self, training: int, rows: int) -> bool:
        """Ask the search for a member, unless as many train or wait as there are rows; whether there is one."""
        if self._ask is None or len(self._queue) + training >= rows:
            return False
        progress = self._ask()
        if progress is None:
            self._ask = None
            return False
        self._queue.extend([progress] if self._rungs is None else self._rungs.admit([progress]))
        return True

    def _round(self, cohort: Cohort) -> None:
        """Run a round, or some up to the next checkpoint, and do what is due behind them."""
        every, before = self._config.train.run.checkpoint_every, cohort.num_rounds
        most = every - self._num_rounds % every if isinstance(every, int) else MOST_ROUNDS
        outcomes = list(cohort.rounds(most))
        self._num_rounds += cohort.num_rounds - before
        self.engine = cohort.loop.description
        ended: list[tuple[int, Progress, float, bool]] = []
        for row, progress, is_finite, epochs in outcomes:
            if not is_finite:
                self._end(cohort, row, "diverged")
                continue
            if epochs is not None and self._config.of(progress.member.variant).is_per_round:
                step_scheduler(progress.scheduler, cohort.last_loss(progress))
            is_over = epochs is None or cohort.is_over(row, progress)
            if epochs is not None and epochs > progress.epoch:
                progress.epoch = epochs
                ended.append((row, progress, epochs, is_over))
            elif is_over:
                ended.append((row, progress, cohort.epochs(row), is_over))
        for row, *_ in ended:
            # A device with streams does not look at weights behind a step.
            if not bool(torch.isfinite(cohort.group.matrix.weights_of(row).sum())):
                self._end(cohort, row, "diverged")
        ended = [each for each in ended if cohort.rows[each[0]] is not None]
        if ended:
            values = cohort.evaluate([(row, self._evaluator_of(progress.member)) for row, progress, _, _ in ended])
            for (row, progress, epoch, is_over), own in zip(ended, values, strict=True):
                self._end_epoch(cohort, row, progress, epoch, own, is_over)

    def _end_epoch(
        self, cohort: Cohort, row: int, progress: Progress, epoch: float, values: Mapping[str, float], is_over: bool
    ) -> None:
        member = progress.member
        last = member.history[-1]["round"] if member.history else -1
        if last != progress.round:
            record: dict[str, Any] = {
                "kind": "epoch",
                "time_s": self.elapsed_s,
                "epoch": epoch,
                "round": progress.round,
                "samples": progress.samples,
                "lr": float(cohort.group.optimizer.by_learner[row].param_groups[0]["lr"]),
                "train_loss": cohort.mean_loss(progress),
                **values,
            }
            member.history.append(record)
            self._directory.log_member(member, self.engine)
            if not self._config.of(member.variant).is_per_round:
                step_scheduler(progress.scheduler, record.get("loss", record["train_loss"]))
        if (why := self._why_over(progress)) is not None or is_over:
            self._end(cohort, row, why)
        elif self._rungs is not None and progress.epoch >= progress.rung:
            progress.state = cohort.state_of(row)
            cohort.export(row)
            self._wait_at_rung(cohort.take(row))

    def _why_over(self, progress: Progress) -> str | None:
        validation = self._config.train.validation
        metrics = {metric.name: metric for metric in validation.metrics}
        if reached(progress.member.history[-1], validation.target or {}, metrics):
            return "target"
        for rule in self._config.rules:
            if (why := rule.why_over(progress.member)) is not None:
                return why
        return None

    def _end(self, cohort: Cohort, row: int, why: str | None) -> None:
        cohort.loop.catch_up()
        cohort.export(row)
        self._ended(cohort.take(row), why)

    def _ended(self, progress: Progress, why: str | None) -> None:
        progress.member.stopped = why
        if self._rungs is not None:
            self._rungs.note(progress.member, progress.rung)
        self._count(progress)

    def _wait_at_rung(self, progress: Progress) -> None:
        self._directory.save_member(progress.member, self.engine)
        assert self._rungs is not None
        self._queue.extendleft(self._rungs.pause(progress))

    def _decide(self) -> bool:
        """With all members at a rung, queue those that go on, and end the others; whether any goes on."""
        while self._rungs is not None and not self._queue and self._rungs.paused:
            going_on, ended = self._rungs.decide()
            self._queue.extend(going_on)
            for progress in ended:
                progress.member.stopped = "halving"
                progress.state = None
                self._count(progress)
        return bool(self._queue)

    def _count(self, progress: Progress) -> None:
        self._num_samples += progress.samples
        self._directory.save_member(progress.member, self.engine)
        self._directory.log_member(progress.member, self.engine, has_ended=True)
        self._progress.ended(progress.member, self.elapsed_s)
        if self._config.search is not None:
            self._config.search.tell(progress.member)

    def _evaluator_of(self, member: Member) -> Evaluator | None:
        validation, train = self._config.train.validation, self._config.train
        own = member.variant.validate_on
        if own is None and validation.data is None:
            return None
        key = id(own)
        if key not in self._evaluators:
            data = validation.data if own is None else held_out(train.data, own)
            self._evaluators[key] = Evaluator(data, train.loss, validation.metrics, validation.batch_size)
        return self._evaluators[key]

    def _checkpoint_is_due(self) -> bool:
        every = None if self._config.search is not None else self._config.train.run.checkpoint_every
        if every == "auto":
            return self._timer.is_due(time.perf_counter())
        return every is not None and self._num_rounds % every == 0

    def _save(self, cohort: Cohort) -> None:
        began = time.perf_counter()
        cohort.loop.catch_up()
        training = [
            dataclasses.replace(progress, state=cohort.state_of(row))
            for row, progress in enumerate(cohort.rows)
            if progress is not None
        ]
        waiting = [*training, *self._queue, *self._paused]
        self._directory.engine = {repr(self._cohort_kind): cohort.loop.engine_state}
        self._directory.save_checkpoint(self._num_rounds, waiting, self._members, self.elapsed_s)
        self._timer.wrote(began, time.perf_counter())


def held_out(data: Any, indices: Any) -> Any:
    if type(data) is TensorDataset:
        data = data.tensors
    if isinstance(data, Dataset):
        return Subset(data, indices.tolist())
    return tree_map(lambda leaf: leaf[indices] if isinstance(leaf, Tensor) else leaf, data)
