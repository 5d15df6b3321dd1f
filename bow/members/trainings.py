"""Members with several learners: each is a training of `bow.train`, one after another."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bow.errors import DivergenceError
from bow.members.loop import SweepLoop, held_out, selected
from bow.members.member import Member, Progress
from bow.observe import RunDirectory
from bow.observe.records import read_records
from bow.observe.report import continuous
from bow.training.checkpoint import delete_checkpoints, newest_round, save_checkpoint
from bow.training.config import TrainConfig
from bow.training.result import Result
from bow.training.run import TrainingLoop
from bow.training.train import run_training

RUNG, INTERRUPTED = "rung", "interrupted"  # reasons for ending a training that can resume


class TrainingsLoop(SweepLoop):
    """Sweep whose members have several learners, which fill the machine; one member trains at a time."""

    def _train(self) -> None:
        began, progress = time.perf_counter(), self._queue.popleft()
        member, before = progress.member, progress.round
        try:
            result = run_training(self._config_of(progress))
        except DivergenceError:
            self._read_events(member, began - self._began)
            self._ended(progress, "diverged")
        else:
            self.engine, self.at_once = result.engine, 1
            member.model, member.best = result.model, result.best
            self._read_events(member, self.elapsed_s - result.seconds)
            if result.interrupted_by is not None:
                self._interruption.signal = result.interrupted_by
            is_over = result.stopped is not None or self._has_all_rounds(progress)
            if result.stopped == RUNG:
                self._wait_at_rung(progress)
            elif result.stopped == INTERRUPTED or (result.interrupted_by is not None and not is_over):
                self._queue.appendleft(progress)
            else:
                self._ended(progress, result.stopped)
        self._num_rounds += progress.round - before
        self._train_s += time.perf_counter() - began
        if self._config.search is not None:
            self._propose(0, 1)
        else:
            waiting = [*self._queue, *self._paused]
            self._directory.save_checkpoint(self._num_rounds, waiting, self._members, self.elapsed_s)

    def _config_of(self, progress: Progress) -> TrainConfig:
        variant, own = progress.member.variant, RunDirectory(progress.member.run_dir)
        train = self._config.of(variant)
        part = _Part(self._config.rules, lambda run: self._epoch_ended(progress, run), self._directory.attempt)
        validation = train.validation
        if variant.validate_on is not None:
            validation = dataclasses.replace(validation, data=held_out(train.data, variant.validate_on))
        if newest_round(own.checkpoints) is None:
            own.model_path.unlink(missing_ok=True)  # of a finished training, if the sweep was killed then
        return dataclasses.replace(
            train.with_run(path=own.path, resume="auto", on_interrupt="return", loggers=(), progress=False),
            data=train.data if variant.train_on is None else selected(train.data, variant.train_on),
            engine=dataclasses.replace(train.engine, name="graph") if train.engine.name == "auto" else train.engine,
            validation=validation,
            stop=(part,),
            callbacks=(part,),
        )

    def _epoch_ended(self, progress: Progress, run: TrainingLoop) -> str | None:
        """Copy the records of a training to its member; return why the training is to end, or None."""
        if run.interrupted_by is not None:  # within an epoch, which is completed after resuming
            return None
        member, later = progress.member, self.elapsed_s - run.position.elapsed_s
        known = {record["round"]: record for record in member.history}
        member.history = [
            known.get(each["round"]) or {**each, "time_s": each["time_s"] + later} for each in run.history
        ]
        progress.round, progress.samples, progress.epoch = run.round, run.samples, run.epoch
        self.engine = member.engine = run.replicas.engine
        self._directory.log_member(member)
        if self._progress.is_due:
            self._progress.show([progress], [*self._queue, *self._paused])
        if (why := self._why_over(progress)) is not None or self._has_all_rounds(progress):
            return why
        if self.interrupted_by is not None:  # before or after the training's own rounds
            return INTERRUPTED
        return RUNG if 0 < progress.rung <= progress.epoch else None

    def _read_events(self, member: Member, later: float) -> None:
        """Copy the events of a training, of which those before its last rung are the member's already."""
        path = RunDirectory(member.run_dir).metrics_path
        read = continuous(read_records(path, strict=False)) if path.exists() else []
        known = set(map(_identity, member.events))
        for record in read:
            is_event = record["kind"] == "event" and record.get("event") != "stopped"  # at a rung
            if is_event and _identity(record) not in known:
                member.events.append({**record, "time_s": record.get("time_s", 0.0) + later})

    def _has_all_rounds(self, progress: Progress) -> bool:
        steps, epochs = self._config.train.steps, self._config.train.epochs
        return progress.epoch >= epochs if steps is None else progress.round >= steps

    def _count(self, progress: Progress) -> None:
        if not isinstance(self._config.train.run.checkpoint_every, int):  # checkpoints were for resuming at rungs
            delete_checkpoints(RunDirectory(progress.member.run_dir).checkpoints)
        super()._count(progress)


def _identity(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(event.get(name) for name in ("round", "event", "message"))


class _Part:
    """Stop rule and callback of `bow.train` that ends a member's training at its next rung."""

    def __init__(
        self, rules: Sequence[Any], why_over: Callable[[Any], str | None], attempt: Callable[..., None]
    ) -> None:
        self.why_over, self._attempt = why_over, attempt
        for rule in reversed(rules):
            if hasattr(rule, "higher_is_better"):  # the metric of `result.best`
                self.metric, self.higher_is_better = rule.metric, rule.higher_is_better

    def on_train_end(self, run: TrainingLoop, result: Result) -> None:
        if result.stopped in (RUNG, INTERRUPTED) and (state := run.state()) is not None:
            folder = RunDirectory(run.run_dir).checkpoints
            write = functools.partial(save_checkpoint, folder, run.round, state)
            self._attempt(write, "checkpoint")
