"""The loop of a sweep: fill rows from the queue of members, run rounds, end epochs, apply stopping rules."""

import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils._pytree import tree_map
from torch.utils.data import Subset, TensorDataset

from bow.data import ShiftedAndMirrored, is_in_memory
from bow.devices import StreamDevice
from bow.errors import warn_user
from bow.interruption import Interruption
from bow.members.cohort import (
    MOST_ROUNDS,
    Cohort,
    Evaluated,
    RowOutcome,
    SharedSamples,
    evaluate,
    run_side_by_side,
)
from bow.members.config import SweepConfig
from bow.members.member import Member, Progress
from bow.members.progress import SweepProgress
from bow.members.rows import rows_of_device
from bow.members.saving import MEMBERS, SweepDirectory
from bow.members.stopping import Rungs
from bow.replicas import num_trainable
from bow.training.checkpoint import CheckpointTimer
from bow.training.checks import step_scheduler
from bow.training.evaluation import Evaluator
from bow.training.metrics import reached
from bow.training.stopping import first_reason

# A member on a row whose epoch or training has ended: with its number of epochs, and whether its rounds are complete.
EpochEnd: TypeAlias = tuple[Cohort, int, Progress, float, bool]


class SweepLoop:
    """A sweep in progress."""

    def __init__(
        self,
        config: SweepConfig,
        members: Sequence[Member],  # all, including those that have ended
        waiting: Iterable[Progress],
        devices: Sequence[torch.device | StreamDevice],
        directory: SweepDirectory,
        progress: SweepProgress,
        elapsed_s: float = 0.0,  # before resuming, like num_rounds
        num_rounds: int = 0,
        ask: Callable[[], Progress | None] | None = None,  # proposes a member and adds it to `members`
    ) -> None:
        self._config = config
        self._members = members
        self._queue = deque(waiting)
        self._ask = ask
        self._devices = devices
        self._directory = directory
        directory.place = lambda: {"time_s": self.elapsed_s, "round": self._num_rounds}
        self._progress = progress
        self._evaluators: dict[int, Evaluator] = {}
        self._began = time.perf_counter() - elapsed_s
        self._interruption = Interruption()
        self._cohorts: list[Cohort] = []  # open ones
        self._most = self._fitting = 0  # members that train at once, and rows that fit in memory, on all devices
        self._timer: CheckpointTimer | None = None
        self._num_rounds = num_rounds
        self._num_samples = 0
        self._train_s = 0.0
        self._resumed = directory.engine
        self.engine = ""
        self.at_once = 0
        self._rungs: Rungs | None = None
        if config.halving is not None:
            self._rungs = Rungs(config.halving, members, {progress.member.number for progress in self._queue})
            self._queue = deque(self._rungs.admit(self._queue))

    @property
    def elapsed_s(self) -> float:
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
        except Exception:
            with contextlib.suppress(OSError):  # a training that failed has left it empty, or there is none
                (self._directory.path / MEMBERS).rmdir()
            if not self._num_rounds and not any(each.is_dir() for each in self._directory.path.iterdir()):
                self._directory.discard()  # nothing has been trained
            raise
        finally:
            for cohort in self._cohorts:
                cohort.loop.close()
            self._progress.close()
        waiting = [*self._queue, *self._paused]
        if not waiting and self._config.search is None:  # the last checkpoint marks a sweep as ended
            self._directory.save_checkpoint(self._num_rounds, [], self._members, self.elapsed_s)
        for progress in waiting:
            progress.member.stopped = "interrupted"
            if self._config.search is not None:
                self._config.search.tell(progress.member)

    @property
    def _training(self) -> list[Progress]:
        return [each for cohort in self._cohorts for each in cohort.rows if each is not None]

    def _train(self) -> None:
        if not self._most:
            rows = rows_of_device(self._config, self._queue, self._devices[0], self._progress.say)
            self._most, self._fitting = (count * len(self._devices) for count in rows)
        began = time.perf_counter()
        while True:
            self._fill()
            if not self._training:
                break
            self._round([cohort for cohort in self._cohorts if cohort.num_training])
            if self._progress.is_due:
                self._progress.show(self._training, [*self._queue, *self._paused])
            if self.interrupted_by is not None or self._checkpoint_is_due():
                self._train_s += time.perf_counter() - began
                if self._config.search is None:
                    self._fill()  # so that a resumed sweep has members in this order
                    self._save()
                began = time.perf_counter()
                if self.interrupted_by is not None:
                    for cohort, row in [(c, row) for c in self._cohorts for row, each in enumerate(c.rows) if each]:
                        cohort.export(row)
                        self._queue.append(cohort.take(row))
                    break
        try:
            for cohort in self._cohorts:
                cohort.loop.check_last()
                self._take_events(cohort)
        except Exception:
            if self._config.search is None:
                self._save()
            raise
        self._train_s += time.perf_counter() - began

    def _fill(self) -> None:
        """Assign rows to queued members in order, up to the number that may train at once."""
        num_training = len(self._training)
        while self._propose(num_training, self._most):
            pass
        waiting = deque[Progress]()
        while self._queue and num_training < self._most:
            progress = self._queue.popleft()
            free = (each for each in self._cohorts if each.kind == progress.kind and None in each.rows)
            try:
                cohort = next(free, None) or self._open(progress)
            except Exception:  # of the last check of a cohort that is closed for it
                self._queue.extendleft([progress, *reversed(waiting)])
                if self._config.search is None and self._num_rounds:
                    self._save()
                raise
            if cohort is None:
                waiting.append(progress)
            else:
                cohort.place(progress)
                num_training += 1
        self._queue.extendleft(reversed(waiting))
        self.at_once = max(self.at_once, num_training)

    def _open(self, first: Progress) -> Cohort | None:
        """Open a cohort for a member and the waiting ones of its kind; None if there are too many rows."""
        training, num_devices = self._training, len(self._devices)
        waiting = 1 + sum(each.kind == first.kind for each in self._queue)
        share = math.ceil((waiting + sum(each.kind == first.kind for each in training)) / num_devices)
        by_device = [sum(c.num_training for c in self._cohorts if c.where is each) for each in self._devices]
        least = min(by_device)
        rows = self._room_for(min(waiting, share, self._most // num_devices - least))
        if rows < 1:
            return None
        is_search = self._config.search is not None
        samples, rounds = SharedSamples(self._config.train.data), self._config.most_rounds.get(first.kind)
        in_all = None if rounds is None or is_search else rounds * (self._config.part_of or self._config.num_members)
        is_reused = waiting > rows or is_search or self._config.halving is not None
        cohort = Cohort(self._config, first, rows, self._devices[by_device.index(least)], samples, in_all, is_reused)
        cohort.loop.load_engine(self._resumed.pop(repr(first.kind), {}))
        self._cohorts.append(cohort)
        if self._timer is None:
            size = 3 * 4 * num_trainable(cohort.group.template) * (rows + len(self._queue))
            self._timer = CheckpointTimer(size, time.perf_counter())
        return cohort

    def _room_for(self, rows: int) -> int:
        """Close cohorts that are not needed; return how many of `rows` more rows are allowed."""
        # A cohort keeps its rows until all its members have ended.
        most = min(2 * self._most, self._fitting)
        wanted = {each.kind for each in (*self._queue, *self._paused)}
        for cohort in [each for each in self._cohorts if not each.num_training]:
            is_kept = cohort.kind in wanted or self._config.search is not None
            if not is_kept or rows > most - sum(len(each.rows) for each in self._cohorts):
                cohort.loop.check_last()
                self._take_events(cohort)
                cohort.loop.close()
                self._cohorts.remove(cohort)
        return min(rows, most - sum(len(each.rows) for each in self._cohorts))

    def _propose(self, training: int, rows: int) -> bool:
        """Ask the search for a member if a row is free; return whether it proposed one."""
        if self._ask is None or len(self._queue) + training >= rows:
            return False
        if (progress := self._ask()) is None:
            self._ask = None
            return False
        self._queue.extend([progress] if self._rungs is None else self._rungs.admit([progress]))
        return True

    def _round(self, cohorts: Sequence[Cohort]) -> None:
        """Run a round of each cohort, or turns up to the next checkpoint; process their outcomes and ended epochs."""
        every, halving = self._config.train.run.checkpoint_every, self._config.halving
        most = every - self._num_rounds % every if isinstance(every, int) else MOST_ROUNDS
        if self._config.search is not None or (halving and halving.asynchronous):
            most = 1  # the next member may depend on which ones have ended
        before, ended = [cohort.num_rounds for cohort in cohorts], list[EpochEnd]()
        for cohort, outcomes in run_side_by_side(cohorts, most):
            self._take_events(cohort)
            ended += self._epochs_ended(cohort, outcomes)
        self.engine = ", ".join(dict.fromkeys(cohort.loop.description for cohort in cohorts))
        self._num_rounds += max(cohort.num_rounds - each for cohort, each in zip(cohorts, before, strict=True))
        if ended:
            values = evaluate([(cohort, row, self._evaluator_of(each.member)) for cohort, row, each, _, _ in ended])
            for each, evaluated in zip(ended, values, strict=True):
                self._end_epoch(*each, evaluated)

    def _take_events(self, cohort: Cohort) -> None:
        """Record an engine's events with the members on its rows, or else with the last ones that were."""
        trained = [each.member for each in cohort.rows if each is not None]
        cohort.trained = trained or cohort.trained
        for event in cohort.loop.take_events():
            record = {"kind": "event", "time_s": self.elapsed_s, **vars(event)}
            self._directory.log({**record, "message": f"{', '.join(m.name for m in cohort.trained)}: {event.message}"})
            for member in cohort.trained:
                member.events.append(record)
                if not trained:  # they have been saved
                    self._directory.save_member(member)

    def _epochs_ended(self, cohort: Cohort, outcomes: Sequence[RowOutcome]) -> list[EpochEnd]:
        """Process the outcomes of a cohort; return its members whose epoch or time has ended."""
        ended = list[EpochEnd]()
        for row, progress, is_finite, epochs in outcomes:
            progress.member.engine = cohort.loop.description
            if not is_finite:
                self._end(cohort, row, "diverged")
                continue
            if epochs is not None and self._config.of(progress.member.variant).is_per_round:
                needs_loss = isinstance(progress.scheduler, ReduceLROnPlateau)
                step_scheduler(progress.scheduler, float(progress.losses.values[-1][-1]) if needs_loss else math.nan)
            is_over = epochs is None or cohort.is_over(row)
            if epochs is not None and epochs > progress.epoch:
                progress.epoch = epochs
                ended.append((cohort, row, progress, epochs, is_over))
            elif is_over:
                ended.append((cohort, row, progress, cohort.epochs(row), is_over))
        for _, row, *_ in ended:
            # A device with streams does not check weights after a step.
            if not bool(torch.isfinite(cohort.group.matrix.weights_of(row).sum())):
                self._end(cohort, row, "diverged")
        return [each for each in ended if cohort.rows[each[1]] is not None]

    def _end_epoch(
        self, cohort: Cohort, row: int, progress: Progress, epoch: float, is_over: bool, evaluated: Evaluated
    ) -> None:
        member, (values, problem) = progress.member, evaluated
        if not member.history or member.history[-1]["round"] != progress.round:
            if problem is not None:
                warn_user(problem.text if problem.of_the_data else f"{member.name}: {problem.text}")
                at = {"kind": "event", "time_s": self.elapsed_s, "round": progress.round}
                member.events.append({**at, "event": "not finite", "message": problem.text})
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
            self._directory.log_member(member)
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
        return first_reason(self._config.rules, progress.member)

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
        self._directory.save_member(progress.member)
        assert self._rungs is not None
        self._queue.extendleft(self._rungs.pause(progress))

    def _decide(self) -> bool:
        """With all members at a rung, queue those that continue and end the others; return whether any continues."""
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
        self._directory.save_member(progress.member)
        self._directory.log_member(progress.member, has_ended=True)
        self._progress.ended(progress.member, self.elapsed_s)
        if self._config.search is not None:
            self._config.search.tell(progress.member)

    def _evaluator_of(self, member: Member) -> Evaluator | None:
        train, own = self._config.train, member.variant.validate_on
        validation = train.validation
        if own is None and validation.data is None:
            return None
        if id(own) not in self._evaluators:
            data = validation.data if own is None else held_out(train.data, own)
            self._evaluators[id(own)] = Evaluator(data, train.loss, validation.metrics, validation.batch_size)
        return self._evaluators[id(own)]

    def _checkpoint_is_due(self) -> bool:
        every = None if self._config.search is not None else self._config.train.run.checkpoint_every
        if every == "auto":
            return self._timer is not None and self._timer.is_due(time.perf_counter())
        return every is not None and self._num_rounds % every == 0

    def _save(self) -> None:
        began, training = time.perf_counter(), list[Progress]()
        for cohort in self._cohorts:
            cohort.loop.catch_up()
            rows = [(row, progress) for row, progress in enumerate(cohort.rows) if progress is not None]
            training += [dataclasses.replace(progress, state=cohort.state_of(row)) for row, progress in rows]
        waiting = [*training, *self._queue, *self._paused]
        open_ones = {repr(cohort.kind): cohort.loop.engine_state for cohort in self._cohorts}
        self._directory.engine = {**self._resumed, **open_ones}
        self._directory.save_checkpoint(self._num_rounds, waiting, self._members, self.elapsed_s)
        if self._timer is not None:
            self._timer.wrote(began, time.perf_counter())


def held_out(data: Any, indices: Any) -> Any:
    """Return the samples to evaluate on: images are shifted and mirrored for training only."""
    return selected(data.tensors if type(data) is ShiftedAndMirrored else data, indices)


def selected(data: Any, indices: Any) -> Any:
    if not is_in_memory(data):
        return Subset(data, indices.tolist())
    return tree_map(lambda leaf: leaf[indices], data.tensors if type(data) is TensorDataset else data)
