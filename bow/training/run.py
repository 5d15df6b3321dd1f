"""The training loop: rounds, epochs, evaluation, checkpoints, and the end."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bow.data import Deal
from bow.data.stream import IndexedStream
from bow.engines import Outcome
from bow.engines.restarts import REMEDY
from bow.errors import DivergenceError, SettingError
from bow.interruption import Interruption
from bow.observe import ProgressBar
from bow.training.callbacks import Hooks
from bow.training.checkpoint import RunCheckpoints, newest_round, scheduler_type
from bow.training.checks import step_scheduler
from bow.training.context import RunContext
from bow.training.dealing import Agreement, Dealing
from bow.training.epoch import Epoch, check_recorded
from bow.training.evaluation import Evaluations
from bow.training.metrics import check_names
from bow.training.replicas import Replicas, remember
from bow.training.result import Result, save_results
from bow.training.run_records import RunRecords
from bow.training.tuning import Watch

if TYPE_CHECKING:
    from bow.training.compiling import CompilingBeside

WARMUP_ROUNDS = 20  # excluded from throughput, at most a quarter of the training: they compile and allocate


class TrainingLoop:
    """A training in progress, as callbacks receive it.

    Attributes:
        replicas: the learners.
        position: progress of the training.
        interrupted_by: the signal that ends the training, if one does.
        stopped: why a rule of `stop` ends it, if one does.
    """

    def __init__(self, context: RunContext, scheduler: LRScheduler | None, progress: ProgressBar, hooks: Hooks) -> None:
        self.replicas = context.replicas
        self.position = context.position
        self.interrupted_by: int | None = None
        self.stopped: str | None = None
        self._context = context
        self._scheduler = scheduler
        self._progress = progress
        self._hooks = hooks
        self._world = context.world
        self._records = RunRecords(context, progress)
        self._epoch = Epoch(context.replicas)
        self._evaluations = Evaluations(context, self._records)
        self._checkpoints = RunCheckpoints(context, self._records, self.state)
        self._agreement = Agreement(context.world)
        self._interruption = Interruption()
        self._dealing = Dealing(context, self._records, self._agreement, self._evaluations)
        self._watch: Watch | None = None
        self._compiling: CompilingBeside | None = None
        self._is_between = True  # the learners are as of the last round that was counted
        self._dealt_from: dict[str, Any] | None = None  # the stream before batches that learners have yet to run
        self._asked_to_stop = False
        self._agreed_to_stop = False
        self._seconds = 0.0
        self._start_online_tuning()

    @property
    def round(self) -> int:
        """Completed rounds."""
        return self.position.round

    @property
    def samples(self) -> int:
        """Samples processed by all learners together."""
        return self.position.samples

    @property
    def epoch(self) -> int:
        """Completed epochs."""
        return self.position.epoch

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of kind `epoch` so far."""
        return self.position.history

    @property
    def run_dir(self) -> Path:
        """Directory of the run's files."""
        return self._context.directory.path

    @property
    def received_signal(self) -> int | None:
        return self.interrupted_by if self.interrupted_by is not None else self._interruption.signal

    @property
    def resume_hint(self) -> str:
        return self._checkpoints.resume_hint

    def stop(self) -> None:
        """End the training after this round, or after its group if several run at once.

        With several devices, a call on one suffices, and all end after the same round, slightly later.
        """
        self._asked_to_stop = True

    def go(self) -> None:
        """Train until the data or steps are used up, the target is reached, or a rule, callback or signal ends it."""
        directory, leads = self._context.directory, self._world.leads
        try:
            with self._interruption.watched():
                self._train()
        except BaseException as error:
            is_new = self._context.fresh and not self.position.meter.samples
            if isinstance(error, Exception):
                is_between = self._is_between and not isinstance(error, DivergenceError)
                self._checkpoints.write_pre_failure(is_between, self._dealt_from)
            if isinstance(error, Exception) and is_new and leads:
                directory.discard()
            elif leads and newest_round(directory.checkpoints) is not None:
                error.add_note(self.resume_hint)
            self._records.close()
            raise
        finally:
            if self._compiling is not None:
                self._compiling.close()
            self._progress.close()

    def finish(self) -> Result:
        context, position = self._context, self.position
        try:
            with self._evaluations.averaged():
                model, model_path, report_path = self.replicas.export(), None, None
            best = self._evaluations.best(model)
            if self._world.leads:
                is_over = position.meter.samples > 0 and self.interrupted_by is None
                deletes = is_over and not context.keeps_checkpoints
                other = None if best is None or best.model is model else best.model
                model_path, report_path = save_results(model, other, context.directory, self._records, deletes)
                if len(dict(model.named_parameters(remove_duplicate=False))) > len(list(model.parameters())):
                    self._progress.say(
                        f"tied weights are stored once in {model_path}: read it with safetensors.torch.load_model"
                    )
            result = Result(
                model=model,
                best=best,
                stopped=self.stopped,
                history=position.history,
                throughput=position.meter.throughput,
                learners=self.replicas.learners,
                engine=self.replicas.engine,
                time_to_target=position.time_to_target,
                run_dir=self.run_dir,
                model_path=model_path,
                report_path=report_path,
                seconds=self._seconds,
                calibration_s=context.tuned.seconds,
                num_restarts=context.num_restarts,
            )
        finally:
            self._records.close()
        self._hooks.call("on_train_end", self, result)
        return result

    def state(self) -> dict[str, Any] | None:
        """Return a checkpoint's contents at rank 0; all devices must call this after the same round."""
        if self.round != self.replicas.rounds:
            raise SettingError(
                f"there is no state of round {self.round}, the learners have already run {self.replicas.rounds} rounds "
                '(dispatch="first_come"); call this when run.round == run.replicas.rounds, or use checkpoint_every='
            )
        context = self._context
        replicas, epoch = self.replicas.training_state(), self._epoch.state()
        if replicas is None or epoch is None:
            return None
        return {
            "replicas": replicas,
            "stream": context.stream.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "learners": context.tuned.learners,
            "by_device": list(self.replicas.group.by_device),
            "tuned": {
                **context.tuned.setting,
                "compiles_later": self._compiling is not None and self._compiling.is_open,
            },
            "started_with": context.started_with,
            "settings": dict(context.trajectory),
            "scheduler_type": scheduler_type(self._scheduler),
            "automatic": not context.keeps_checkpoints,
            **self.position.state(),
            **self._evaluations.state,
            **epoch,
        }

    def load_state(self, state: Mapping[str, Any], step_values: Mapping[str, Tensor] | None) -> None:
        self.position.load(state)
        self._epoch.load(step_values, state)
        self._evaluations.load(state)
        self._apply_stop_rules()

    @property
    def _has_ended(self) -> bool:
        return self._agreed_to_stop or self.stopped is not None or self.position.time_to_target is not None

    @property
    def _is_evaluated(self) -> bool:
        return bool(self.history) and self.history[-1]["round"] == self.round

    def _apply_stop_rules(self) -> None:
        if self.stopped is None and self.history and (rules := self._context.config.stop):
            from bow.training.stopping import first_reason  # most trainings have no rules

            self.stopped = self._world.broadcast(first_reason(rules, self))
            if self.stopped is not None:
                best = self._evaluations.state["best"]
                at = f", the best evaluation was after {best['epoch']:g}" if best else ""
                self._records.event("stopped", f"{self.stopped}: the training ends after {self.epoch} epochs{at}")

    def _start_online_tuning(self) -> None:
        """Tune the number of learners while training, and whether to compile; those of a partition are fixed."""
        replicas, context = self.replicas, self._context
        if not isinstance(replicas, Replicas):
            return
        if context.tuned.compiles_later and self._world.is_one:
            from bow.training.compiling import CompilingBeside  # few trainings need it

            self._compiling = CompilingBeside(context, self._records, self._dealing.rounds_left)
        most = self._world.all_gather(context.most_learners)
        if all(most) and (self._world.is_one or context.tuner.objective == "throughput"):
            self._watch = Watch(replicas, context.tuner, most, context.tuned.signals)

    def _train(self) -> None:
        position, meter = self.position, self.position.meter
        position.start()
        rounds = self._dealing.rounds_left()
        self._records.begin(rounds)
        self._hooks.call("on_train_start", self)
        begun = self._context.stream.epochs
        if begun > self.epoch and not self._is_evaluated:  # where it failed at the end of an epoch, and goes on now
            self.replicas.optimizer._opt_called = True  # type: ignore[attr-defined]  # before
            self._end_epoch(begun)
        warm_at = self.round + min(WARMUP_ROUNDS, (rounds or WARMUP_ROUNDS) // 4)
        meter.resume()
        self._agreement.begin(meter.now, self.round)
        self._agree()
        while not self._has_ended and not self._dealing.is_over:
            if not (deals := self._deal()):
                break
            cold = self.round < warm_at
            self._rounds(deals)
            if cold and self.round >= warm_at:
                meter.steady_from = (meter.now, meter.samples)
                memory = self.replicas.memory if isinstance(self.replicas, Replicas) else None
                if memory is not None and (report := memory.report(self.replicas.learners)):
                    self._records.event("memory", report)
        meter.pause()
        self.replicas.loop.check_last()
        self._records.gather_events()
        self.interrupted_by = self._agreement.signal_of(self._interruption.signal)
        if self.interrupted_by is not None:
            self._checkpoints.interrupted(self.interrupted_by)
        if not self._is_evaluated:
            self._end_epoch(position.epochs)
        self._seconds = position.elapsed_s
        found = self.replicas.loop.context.log.parallel_speedup if isinstance(self.replicas, Replicas) else None
        if found is not None and len(found.times) > 2 and self._world.is_one:  # the first task is slower
            self._records.event("parallel learning tasks", str(found))
        self._records.end(self._evaluations.state["best"].get("round"))

    def _deal(self) -> list[Deal]:
        self._dealt_from = self._context.stream.state_dict()
        deals = self._dealing.deal(sys.maxsize if self._compiling is None else self._compiling.rounds_to_switch)
        if not deals:
            self._dealt_from = None
        return deals

    def _rounds(self, deals: Sequence[Deal]) -> None:
        before, meter = self.round, self.position.meter
        self._is_between = False
        try:
            ran = self._dealing.run(deals, self._watch if self._world.is_one else None)
        except Exception as error:
            is_undone, stream, ended = self._checkpoints.is_undone(error), self._context.stream, self._dealing.ended
            # Rounds of the group before the one that failed.
            if ended and self._world.is_one and isinstance(stream, IndexedStream):
                stream.step_back(sum(deal.num_samples for deal in deals) - sum(deal.num_samples for deal, _ in ended))
                self._count_rounds(ended)
                self._records.rounds()
            self._is_between = is_undone
            raise
        try:
            if self._dealing.ends_with(deals):
                self.replicas.loop.check_last()
        finally:  # an exception of the check leaves a checkpoint behind these rounds
            self._count_rounds(ran)
        self._records.rounds()
        if self._world.is_one:
            self._apply_tuner(meter.now)
        if (ends_epoch := deals[-1].epochs > self.epoch) or self._evaluations.is_due:
            meter.pause()
            if ends_epoch:
                self._end_epoch(deals[-1].epochs)
            else:
                self._evaluations.within_epoch()
            meter.resume()
        self._checkpoints.after_round(before)
        self._agree()

    def _count_rounds(self, ran: Sequence[tuple[Deal, Outcome]]) -> None:
        failure: Exception | None = None
        for deal, outcome in ran:
            self._count_round(deal, outcome)
            try:
                if failure is None:
                    self._hooks.call("on_round_end", self)
            except Exception as error:  # those behind it have been run, too
                failure = error
            if self._context.config.is_per_round:
                needs_loss = isinstance(self._scheduler, ReduceLROnPlateau)
                step_scheduler(self._scheduler, self._epoch.loss_of(outcome, deal) if needs_loss else math.nan)
        self._is_between, self._dealt_from = True, None
        if failure is not None:
            raise failure

    def _count_round(self, deal: Deal, outcome: Outcome) -> None:
        position = self.position
        position.round += 1
        position.samples += deal.num_samples
        if not position.meter.samples and self._context.evaluate is not None:
            check_names("a value of the step", outcome.metrics)
            check_recorded(outcome.metrics)
        position.meter.samples += deal.num_samples
        self._epoch.add(outcome, deal)
        self._records.round_ended(outcome)
        if self._evaluations.average is not None:
            self._evaluations.average.round_ended()
        remember(self.replicas, outcome)

    def _end_epoch(self, epochs: float) -> None:
        before, self.position.epoch = self.position.epoch, int(epochs)
        try:
            record = {
                "kind": "epoch",
                "epoch": epochs,
                **self._records.place,
                "samples_per_s": self.position.meter.throughput,
            }
            values = self._evaluations.evaluate()
            self._epoch.check_values(values)
            of_training = self._epoch.take_values()
        except Exception:
            self.position.epoch = before  # which ends where the training goes on
            raise
        signals = self._context.tuned.signals
        if signals is not None and math.isfinite(noise := signals.noise_scale or 0.0) and noise:
            record["noise_scale"] = noise
        record["train_loss"] = of_training.pop("train_loss")
        self.history.append(self._records.log(record | values | of_training))
        try:
            self._epoch.check_divergence(self._context.config.on_nan, self._has_ended)
            self._evaluations.check_target(values)
            self._hooks.call("on_epoch_end", self, self.history[-1])
        finally:  # what fails there leaves a checkpoint
            if not self._context.config.is_per_round:
                loss = values.get("loss", record["train_loss"])
                step_scheduler(self._scheduler, loss, self.epoch - before)
        self._apply_stop_rules()

    def _agree(self) -> None:
        """Agree with all devices whether the training ends after this round, and whether a checkpoint is due."""
        if self._compiling is not None:
            self._compiling.between_rounds()
        meter, is_due = self.position.meter, self._checkpoints.is_due
        wants = self._asked_to_stop or self._interruption.signal is not None
        if self._world.is_one:
            self._agreed_to_stop = self._agreed_to_stop or wants
            if is_due and not self._has_ended:
                self._checkpoints.pause_and_write()
        elif self.round >= self._agreement.next_round:
            hopeless = self.replicas.loop.is_hopeless
            heard = self._agreement.exchange(meter.now, self.round, wants, hopeless, is_due)
            if heard.hopeless and not heard.stop:
                self._records.gather_events()
                raise DivergenceError(f"training diverged: every learner of every device did; {REMEDY}")
            self._agreed_to_stop = self._agreed_to_stop or heard.stop
            if heard.checkpoint and not self._has_ended:
                self._checkpoints.pause_and_write()
            self._apply_tuner(heard.seconds)

    def _apply_tuner(self, seconds: float) -> None:
        if self._watch is not None and (change := self._watch.round_ended(seconds, self.position.meter.samples)):
            self._records.event("learners", change)
