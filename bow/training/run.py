"""One training as it goes: rounds, epochs, records, evaluation, checkpoints."""

import math
import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bow.data import BatchStream, Deal
from bow.engines import Outcome, Stacked
from bow.engines.loop import MAX_ROUNDS_TOGETHER
from bow.engines.restarts import REMEDY
from bow.engines.thread_pool import num_threads
from bow.errors import BowError, DataError, DeviceMemoryError, DivergenceError, SettingError, reason
from bow.observe import JsonLinesLogger, ProgressBar, RunDirectory, SafeLogger, write_report
from bow.observe.records import SYNTHETIC
from bow.seeds import derive_seed
from bow.training.agreement import Agreement
from bow.training.callbacks import Hooks
from bow.training.checkpoint import delete_checkpoints, newest_round, save_checkpoint
from bow.training.checkpoint_timer import CheckpointTimer
from bow.training.config import TrainConfig
from bow.training.data_source import dealt_again
from bow.training.evaluation import Evaluator, recalibrate_central
from bow.training.interruption import Interruption
from bow.training.learners import Learners
from bow.training.meter import Meter
from bow.training.metrics import Metric, check_names, mean_of, reached
from bow.training.replicas import Replicas, remember
from bow.training.result import Result
from bow.training.resuming import scheduler_type
from bow.training.round_batches import MAX_BYTES_TOGETHER, num_bytes
from bow.training.saving import save_central
from bow.training.tuning import Tuned
from bow.training.watch import Watch
from bow.training.watch_devices import WatchDevices
from bow.tuner import Tuner

RECORD_INTERVAL_S = 0.5
"""Seconds of training between two records of kind `rounds`."""

RECALIBRATION = 1
"""Tells the seed of recalibration's batches from those of training."""

TOLD = ("learner restarted", "engine changed")
"""Events of which engines warn, each kind once; rank 0 warns of those of other devices."""

MOST_LOST = 0.5
"""The largest part of an epoch's steps that may come to nothing."""

WARMUP_ROUNDS = 20
"""Rounds that throughput leaves out, or a quarter of a short training: the first ones compile and allocate."""


@dataclass(frozen=True)
class Plan:
    """What is to be done, apart from the rounds themselves."""

    config: TrainConfig
    is_synthetic: bool  # whether the data are made up
    keeps_checkpoints: bool  # whether they stay when the training has ended; "auto" deletes its own
    evaluate: Evaluator | None
    directory: RunDirectory
    tuned: Tuned  # what the training began with; callbacks and tuner may have changed the number of learners since
    most_learners: int  # as many as the tuner may go up to while training; 0: it changes nothing
    tuner: Tuner
    fresh: bool  # whether nothing of a run was in the run directory before
    threads: int  # torch's threads for evaluation: learning tasks may have been given fewer
    started_with: list[dict[str, Any]]  # the optimizer's settings when training began, before any resume
    trajectory: Mapping[str, Any]  # what else the weights depend on

    @property
    def target(self) -> Mapping[str, float]:
        """Values of the validation data at which the training ends."""
        return dict(self.config.validation.target or {})

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """What the central model is measured by besides the loss."""
        return {metric.name: metric for metric in self.config.validation.metrics}

    @property
    def recalibrate_on(self) -> Any:
        """On what batch-norm statistics are measured anew; None: they are not."""
        return self.config.data if self.config.validation.buffers == "recalibrate" else None


class TrainingLoop:
    """A training in progress; what callbacks get to see.

    Attributes:
        replicas: the learners.
        round: completed rounds.
        samples: samples seen by all learners together.
        epoch: completed epochs.
        history: the records of kind `epoch` so far.
        interrupted_by: the signal that the training ends by, if it does.
    """

    def __init__(
        self,
        replicas: Learners,
        stream: BatchStream,
        scheduler: LRScheduler | None,
        plan: Plan,
        progress: ProgressBar,
        hooks: Hooks,
    ) -> None:
        self.replicas = replicas
        self.round = 0
        self.samples = 0
        self.epoch = 0
        self.history: list[dict[str, Any]] = []
        self.time_to_target: float | None = None
        self._stream = stream
        self._scheduler = scheduler
        self._plan = plan
        self._world = replicas.world
        self._agreement = Agreement(self._world)
        self._warned_of: set[tuple[int, str]] = set()
        self._interruption = Interruption()
        self._loggers: list[SafeLogger] = []
        if self._world.leads:
            records = JsonLinesLogger(plan.directory.metrics_path)
            self._loggers = [SafeLogger(logger) for logger in (records, *plan.config.run.loggers)]
        self._progress = progress
        self._hooks = hooks
        self._stopped = False
        self._asked_to_stop = False
        self.interrupted_by: int | None = None
        self._meter = Meter()
        self._began = time.perf_counter()
        self._elapsed_before = 0.0
        self._epoch_losses: list[Tensor] = []
        self._tasks_of_epoch = 0
        self._restarts_before_epoch = 0
        self._recent_losses: list[Tensor] = []
        self._last_record = (0.0, 0)
        self._evaluated: dict[str, Any] = {"round": -1, "time_s": 0.0, "values": {}}
        self._evaluated_share = 0
        self._seconds = 0.0
        self._watch: Watch | None = None
        self._watch_devices: WatchDevices | None = None
        self._dealt_from: dict[str, Any] = {}
        copies = replicas.group.num_all + 1  # and of each, what an optimizer such as Adam remembers
        self._timer = CheckpointTimer(3 * 4 * replicas.num_parameters * copies, time.perf_counter())
        if isinstance(replicas, Replicas):  # those of a placed strategy stay as many as they are
            self._follow_up(replicas)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first round, evaluation and earlier parts of a resumed training included."""
        return self._elapsed_before + time.perf_counter() - self._began

    @property
    def throughput(self) -> float:
        """Samples per second over the steady part, warm-up and evaluation left out."""
        return self._meter.throughput

    @property
    def asked_to_end_by(self) -> int | None:
        """The signal that it was asked to end by from outside, even behind its last round; None: it was not."""
        return self.interrupted_by if self.interrupted_by is not None else self._interruption.signal

    def stop(self) -> None:
        """End the training after this round; with `dispatch="first_come"`, after those that ran as one with it.

        Where there are several devices, one that asks is enough, and all end behind the same round, a little later.
        """
        self._asked_to_stop = True

    @property
    def way_on(self) -> str:
        """How to go on with a training that has not ended, in a sentence."""
        kept, path = newest_round(self._plan.directory.checkpoints), str(self.run_dir)
        if kept is None:
            return "there is no checkpoint to go on from"
        return (
            f"there is a checkpoint of round {kept}; go on with bow train ... run.path={path} run.resume=auto, "
            f"in Python with bow.train(..., run=bow.Run({path!r}, resume='auto'))"
        )

    @property
    def run_dir(self) -> Path:
        """Where the files of the run are."""
        return self._plan.directory.path

    def go(self) -> None:
        """Train until the data or the steps are used up, the target is reached, or a callback says stop."""
        try:
            with self._interruption.watched():
                self._train()
        except BaseException as error:
            if isinstance(error, Exception) and not self._meter.samples and self._plan.fresh and self._world.leads:
                self._plan.directory.discard()
            elif self._world.leads and newest_round(self._plan.directory.checkpoints) is not None:
                error.add_note(self.way_on)
            self._close_loggers()
            raise
        finally:
            self._progress.close()

    def _memory_report(self) -> str | None:
        return self.replicas.memory.report(self.replicas.learners) if isinstance(self.replicas, Replicas) else None

    def _follow_up(self, replicas: Replicas) -> None:
        """Let learners come and go while training, if they may."""
        plan = self._plan
        most = self._world.all_gather(plan.most_learners)
        if self._world.is_one and plan.most_learners:
            self._watch = Watch(replicas, plan.tuner, plan.most_learners, plan.tuned.signals)
        elif not self._world.is_one and all(most) and plan.tuner.objective == "throughput":
            self._watch_devices = WatchDevices(replicas, plan.tuner, most)

    def _close_loggers(self) -> None:
        for logger in self._loggers:
            logger.close()

    def finish(self) -> Result:
        """Save the central model, write the report and say how it went."""
        try:
            model, model_path, report_path = self.replicas.export(), None, None
            if self._world.leads:
                checkpoints = self._plan.directory.checkpoints
                is_over = self._meter.samples > 0 and self.interrupted_by is None
                deletes = is_over and not self._plan.keeps_checkpoints
                if deletes:
                    delete_checkpoints(checkpoints, keep=1)  # a small disk may need the room for the model
                model_path = save_central(model, self._plan.directory)
                if model_path != self._plan.directory.model_path:
                    self._event("not written", f"the model is not in the run directory, but in {model_path}")
                elif deletes:
                    delete_checkpoints(checkpoints)
                report_path = self._write(lambda: write_report(self.run_dir), "report", "bow report writes it anew")
            result = Result(
                model=model,
                history=self.history,
                throughput=self.throughput,
                learners=self.replicas.learners,
                engine=self.replicas.engine,
                time_to_target=self.time_to_target,
                run_dir=self.run_dir,
                model_path=model_path,
                report_path=report_path,
                seconds=self._seconds,
                calibration_s=self._plan.tuned.seconds,
                num_restarts=self._num_restarts,
            )
        finally:
            self._close_loggers()
        self._hooks.call("on_train_end", self, result)
        return result

    def _write(self, write: Callable[[], Path], what: str, then: str) -> Path | None:
        """Write a file of the run; None where that fails, which must not cost the user the training."""
        try:
            return write()
        except Exception as error:
            message = f"the {what} cannot be written ({reason(error)}); {then}"
            warnings.warn(message, stacklevel=3)
            self._event("not written", message)
            return None

    def state(self) -> dict[str, Any] | None:
        """Everything that a checkpoint holds.

        Where there are several devices, all ask for it behind the same round; rank 0 gets it, and the others None.
        """
        if self.round != self.replicas.rounds:
            raise SettingError(
                f"there is no state of round {self.round}, the learners have run {self.replicas.rounds} rounds as one "
                '(dispatch="first_come"); ask when run.round == run.replicas.rounds, or use checkpoint_every='
            )
        replicas = self.replicas.training_state()
        losses = torch.cat(self._epoch_losses).cpu() if self._epoch_losses else torch.empty(0)
        by_device = self._world.gather(losses)
        if replicas is None or by_device is None:
            return None
        return {
            "replicas": replicas,
            "stream": self._stream.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "learners": self._plan.tuned.learners,
            "by_device": list(self.replicas.group.by_device),
            "tuned": self._plan.tuned.setting,
            "started_with": self._plan.started_with,
            "settings": dict(self._plan.trajectory),
            "scheduler_type": scheduler_type(self._scheduler),
            "automatic": not self._plan.keeps_checkpoints,
            "round": self.round,
            "samples": self.samples,
            "epoch": self.epoch,
            "elapsed_s": self.elapsed_s,
            "history": self.history,
            "evaluated": self._evaluated,
            "epoch_losses": torch.cat(by_device),
        }

    def load_state(self, state: Mapping[str, Any], epoch_losses: Tensor | None) -> None:
        """Count on from `state()`; `restore` has put the learners there."""
        self.round, self.samples, self.epoch = state["round"], state["samples"], state["epoch"]
        self.history = list(state["history"])
        self._elapsed_before = state["elapsed_s"]
        self._last_record = (0.0, self.samples)
        self._epoch_losses = [] if epoch_losses is None else [epoch_losses.to(self.replicas.device)]
        self._restarts_before_epoch = self.replicas.loop.num_restarts
        self._evaluated_share = self._share()
        last = self.history[-1] if self.history else {"round": -1, "time_s": 0.0}
        self._evaluated = state.get("evaluated", {"round": last["round"], "time_s": last["time_s"], "values": last})
        if reached(self._evaluated["values"], self._plan.target, self._plan.metrics):
            self.time_to_target = self._evaluated["time_s"]
            self._stopped = True

    def _train(self) -> None:
        self._began = time.perf_counter()
        rounds = self._rounds_left()
        self._log({"kind": "start", "rounds": rounds, **self._description()})
        if self._plan.is_synthetic:
            self._event(SYNTHETIC, "the data are synthetic: what is reached says nothing about real ones")
        if self._plan.tuned.source != "given":
            self._log(self._plan.tuned.record)
        self._hooks.call("on_train_start", self)
        warm_at = self.round + min(WARMUP_ROUNDS, (rounds or WARMUP_ROUNDS) // 4)
        self._meter.resume()
        self._agreement.begin(self._meter.now, self.round)
        self._agree_to_stop()
        while not self._stopped and not self._steps_done():
            deals = self._deal()
            if not deals:
                break
            cold = self.round < warm_at
            self._rounds(deals)
            if cold and self.round >= warm_at:
                self._meter.mark_steady()
                if report := self._memory_report():
                    self._event("memory", report)
        self._meter.pause()
        self.interrupted_by = self._agreement.signal_of(self._interruption.signal)
        if self.interrupted_by is not None:
            self._keep(self.interrupted_by)
        if not self.history or self.history[-1]["round"] != self.round:
            self._end_epoch(self._stream_epoch())
        self._seconds = self.elapsed_s
        self._log(self._end_record())

    def _deal(self) -> list[Deal]:
        """The batches of rounds that are handed over at once, not beyond an epoch, a checkpoint or the end."""
        self._dealt_from = self._stream.state_dict()
        try:
            return self._dealt()
        except Exception:
            self._keep_as_it_was()
            raise

    def _dealt(self) -> list[Deal]:
        deals: list[Deal] = []
        limit, room = self._rounds_together(), MAX_BYTES_TOGETHER
        while len(deals) < limit and room > 0:
            deal = self._stream.deal(self.replicas.group.num_all, self.replicas.group.own)
            if deal is None:
                break
            deals.append(deal)
            if deal.epochs > self.epoch:
                break
            room -= num_bytes(deal.batches) if limit > 1 else 0
        return deals

    def _rounds_together(self) -> int:
        watched = self._plan.config.is_per_round or self._hooks.listen("on_round_end")
        if watched and self.replicas.loop.settings.dispatch == "fixed":
            return 1  # who looks at a round sees the learners as that round left them
        limits = [self.replicas.loop.period]
        if self._plan.config.steps is not None:
            limits.append(self._plan.config.steps - self.round)
        if isinstance(self._plan.config.run.checkpoint_every, int):
            limits.append(self._plan.config.run.checkpoint_every - self.round % self._plan.config.run.checkpoint_every)
        if not self._world.is_one:
            limits += [self._agreement.next_round - self.round, self._rounds_to_evaluation()]
        return min(limits)

    def _rounds_to_evaluation(self) -> int:
        """How many rounds, at least, until an evaluation within the epoch is due, which all devices make together."""
        per_epoch, batch = self._stream.samples_per_epoch, self._stream.batch_size
        if self._plan.config.validation.every >= 1 or self._plan.evaluate is None or per_epoch is None:
            return MAX_ROUNDS_TOGETHER
        if batch is None:
            return 1
        left = (self._share() + 1) * self._plan.config.validation.every * per_epoch - self.samples
        return max(1, math.ceil(left / (batch * self.replicas.group.num_all)))

    def _rounds(self, deals: Sequence[Deal]) -> None:
        before = self.round
        try:
            ran = self._run_rounds(deals)
        except Exception as error:
            if self._leaves_nothing(error):
                self._keep_as_it_was()
            raise
        for deal, outcome in ran:
            self._count_round(deal, outcome)
        self._record_rounds()
        if self._watch is not None and (change := self._watch.round_ended(self._meter.now, self._meter.samples)):
            self._event("learners", change)
        if deals[-1].epochs > self.epoch:
            self._meter.pause()
            self._end_epoch(deals[-1].epochs)
            self._meter.resume()
        elif self._share() > self._evaluated_share:
            self._meter.pause()
            self._evaluate_within_epoch()
            self._meter.resume()
        every = self._plan.config.run.checkpoint_every
        if isinstance(every, int) and self.round // every > before // every:
            self._pause_for_checkpoint()
        self._agree_to_stop()

    def _pause_for_checkpoint(self) -> None:
        self._meter.pause()
        self._save_checkpoint()
        self._meter.resume()

    def _keep(self, number: int) -> None:
        """Keep what was trained of a training that is asked to end from outside."""
        self._save_checkpoint()
        self._event("interrupted", f"{signal.Signals(number).name}: the training ends; {self.way_on}")

    def _keep_as_it_was(self) -> None:
        """Keep what was trained before rounds that have failed and left nothing behind."""
        asked_for = self._plan.config.run.checkpoint_every is not None
        if asked_for and self._world.is_one and 0 < self.round == self.replicas.rounds:
            self._save_checkpoint(self._dealt_from)

    def _leaves_nothing(self, error: Exception) -> bool:
        """Whether a round that failed by this error has left the learners as they were.

        A user's step that raises has moved the buffers of `eager`; one that is issued, or dealt ahead, still more.
        """
        if isinstance(error, BowError) or not isinstance(self.replicas, Replicas):
            return isinstance(error, DeviceMemoryError)
        replicas = self.replicas
        moves = replicas.engine != "graph" and any(True for _ in replicas.central.buffers())
        is_fixed = replicas.loop.settings.dispatch == "fixed"
        in_turn = replicas.engine in ("eager", "graph") and replicas.streams is None and is_fixed
        return in_turn and not moves and type(replicas.optimizer).__module__.startswith("torch.optim.")

    def _agree_to_stop(self) -> None:
        asked = self._interruption.signal
        is_due = self._plan.config.run.checkpoint_every == "auto" and self._timer.is_due(time.perf_counter())
        if self._world.is_one:
            self._stopped = self._stopped or self._asked_to_stop or asked is not None
            if is_due and not self._stopped:
                self._pause_for_checkpoint()
        elif self.round >= self._agreement.next_round:
            wants = self._asked_to_stop or asked is not None
            hopeless = self.replicas.loop.is_hopeless
            heard = self._agreement.exchange(self._meter.now, self.round, wants, hopeless, is_due)
            if heard.hopeless and not heard.stop:
                self._gather_events()
                raise DivergenceError(f"training diverged: every learner of every device did; {REMEDY}")
            self._stopped = self._stopped or heard.stop
            if heard.checkpoint and not self._stopped:
                self._pause_for_checkpoint()
            watch = self._watch_devices
            if watch is not None and (change := watch.heard(heard.seconds, self._meter.samples)):
                self._event("learners", change)

    def _save_checkpoint(self, stream: dict[str, Any] | None = None) -> None:
        """Write a checkpoint, of another position in the data where one is given."""
        began = time.perf_counter()
        if (state := self.state()) is not None:
            state["stream"] = stream or state["stream"]
            folder = self._plan.directory.checkpoints
            self._write(lambda: save_checkpoint(folder, self.round, state), "checkpoint", "the training goes on")
        self._timer.wrote(began, time.perf_counter())

    def _run_rounds(self, deals: Sequence[Deal]) -> list[tuple[Deal, Outcome]]:
        """Run rounds; where the tuner has added a learner too many for the memory, with fewer learners."""
        ran: list[tuple[Deal, Outcome]] = []
        left = list(deals)
        while left:
            before, learners = self.replicas.rounds, self.replicas.learners
            together = [Stacked(deal.batches) if deal.stacked else deal.batches for deal in left]
            try:
                return [*ran, *zip(left, self.replicas.rounds_at_once(together), strict=True)]
            except DeviceMemoryError as error:
                if self._watch is None or learners == 1:
                    raise
                self._event("learners", self._watch.ran_out_of_memory(error))
            ended = self.replicas.rounds - before
            ran += [(deal, lost_outcome(learners, self.replicas.device)) for deal in left[:ended]]
            left = dealt_again(left[ended:], learners - 1)
        return ran

    def _count_round(self, deal: Deal, outcome: Outcome) -> None:
        self.round += 1
        self.samples += deal.num_samples
        if not self._meter.samples and self._plan.evaluate is not None:
            check_names("a value of the step", outcome.metrics)
        self._meter.samples += deal.num_samples
        self._tasks_of_epoch += sum(outcome.active)
        self._epoch_losses.append(outcome.losses)
        self._recent_losses.append(outcome.losses)
        remember(self.replicas, outcome)
        self._hooks.call("on_round_end", self)
        if self._plan.config.is_per_round:
            self._step_scheduler(self._mean_loss([outcome.losses]) if self._needs_loss else math.nan)

    def _end_epoch(self, epoch: float) -> None:
        """Evaluate, tell everybody, and step the scheduler."""
        self.epoch = int(epoch)
        record = {
            "kind": "epoch",
            "epoch": epoch,
            **self._position(),
            "train_loss": self._mean_loss(self._epoch_losses),
            "samples_per_s": self._meter.throughput,
        }
        values = self._evaluate()
        record.update(values)
        self.history.append(self._log(record))
        self._check_divergence()
        self._check_target(values)
        self._hooks.call("on_epoch_end", self, self.history[-1])
        if not self._plan.config.is_per_round:
            self._step_scheduler(values.get("loss", record["train_loss"]))
        self._epoch_losses = []

    def _check_divergence(self) -> None:
        """End where most of what was computed since the last epoch came to nothing."""
        restarts = self.replicas.loop.num_restarts
        own = [restarts - self._restarts_before_epoch, self._tasks_of_epoch]
        lost, tasks = map(int, self._world.sum_numbers(own))
        self._restarts_before_epoch, self._tasks_of_epoch = restarts, 0
        if lost > MOST_LOST * tasks and self._plan.config.on_nan != "continue" and not self._stopped:
            raise DivergenceError(
                f"training diverged: {lost} of the last {tasks} steps came to nothing, since loss, gradient or weights "
                f"were not finite; {REMEDY}"
            )

    def _evaluate_within_epoch(self) -> None:
        values = self._evaluate()
        self._log({"kind": "evaluation", "epoch": self._stream_epoch(), **self._position(), **values})
        self._check_target(values)

    def _evaluate(self) -> dict[str, float]:
        """The central model's values of the validation data, by name; of this round, if it was evaluated already."""
        if self._evaluated["round"] == self.round:
            return dict(self._evaluated["values"])
        with num_threads(self._plan.threads):
            values = self._evaluate_now()
        self._evaluated = {"round": self.round, "time_s": self.elapsed_s, "values": values}
        self._evaluated_share = self._share()
        return values

    def _evaluate_now(self) -> dict[str, float]:
        self.replicas.settle()
        self._gather_events()
        if self._plan.recalibrate_on is not None:
            seed = derive_seed(self._plan.config.seed, RECALIBRATION, self.round)
            recalibrate_central(self.replicas, self._plan.recalibrate_on, self._stream.batch_size, seed)
        evaluate = self._plan.evaluate
        if evaluate is None:
            return {}
        own = (evaluate(self.replicas), evaluate.problem) if self._world.leads else ({}, None)
        values, problem = self._world.broadcast(own)
        if problem is not None:
            self._event("not finite", problem.text)
            if self._world.leads:
                warnings.warn(problem.text, stacklevel=2)
            if problem.of_the_data and any(math.isnan(values.get(name, 0.0)) for name in self._plan.target):
                raise DataError(f"the target cannot be reached: {problem.text}")
        return dict(values)

    def _mean_loss(self, by_round: list[Tensor]) -> float:
        """Over the learning tasks of the learners of all devices."""
        if self._world.is_one:
            return mean_of(by_round)
        losses = torch.cat([loss.reshape(-1) for loss in by_round]) if by_round else torch.empty(0)
        there = losses[~losses.isnan()].double()
        total, count = self._world.sum_numbers([float(there.sum()), float(len(there))])
        return total / count if count else float("nan")

    @property
    def _num_restarts(self) -> int:
        return int(self._world.sum_numbers([self.replicas.loop.num_restarts])[0])

    def _share(self) -> int:
        """How many evaluations within epochs are due by now; 0 where they are at the ends of epochs only."""
        per_epoch, every = self._stream.samples_per_epoch, self._plan.config.validation.every
        if every >= 1 or per_epoch is None or self._plan.evaluate is None:
            return 0
        return int(self.samples / (every * per_epoch) + 1e-9)

    @property
    def _needs_loss(self) -> bool:
        """Whether the scheduler goes by a loss."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    def _step_scheduler(self, loss: float) -> None:
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        elif self._scheduler is not None:
            self._scheduler.step()

    def _check_target(self, values: dict[str, float]) -> None:
        target = dict(self._plan.target)
        missing = [name for name in target if name not in values]
        if missing:
            raise SettingError(
                f"target names {missing[0]!r}, which is not measured; choose from {', '.join(values) or 'nothing'}"
            )
        if self.time_to_target is None and reached(values, target, self._plan.metrics):
            self.time_to_target = self.elapsed_s
            text = ", ".join(f"{name} {values[name]:.4g}" for name in target)
            self._event("target reached", f"target reached after {self.time_to_target:.1f} s: {text}")
            self._stopped = True

    def _record_rounds(self) -> None:
        self._record_events()
        seconds, samples = self._last_record
        now = self._meter.now
        if now - seconds < RECORD_INTERVAL_S:
            return
        record = {
            "kind": "rounds",
            "epoch": self._stream_epoch(),
            **self._position(),
            "loss": mean_of(self._recent_losses),
            "samples_per_s": (self.samples - samples) / (now - seconds),
        }
        self._recent_losses = []
        self._last_record = (now, self.samples)
        self._log(record)

    def _record_events(self) -> None:
        if not self._world.leads:
            return  # rank 0 asks for them when all meet
        for event in self.replicas.loop.take_events():
            self._event(event.event, event.message, event.round)

    def _gather_events(self) -> None:
        """Record what has happened on all devices."""
        self._record_events()
        by_device = self._world.gather(self.replicas.loop.take_events()) or []
        for device, events in enumerate(by_device):
            for event in events:
                self._event(event.event, f"device {device}: {event.message}", event.round)
                if event.event in TOLD and (device, event.event) not in self._warned_of:
                    self._warned_of.add((device, event.event))
                    warnings.warn(f"device {device}: {event.message}", stacklevel=2)

    def _position(self) -> dict[str, Any]:
        lr = float(self.replicas.optimizer.param_groups[0]["lr"])
        return {"round": self.round, "samples": self.samples, "learners": self.replicas.learners, "lr": lr}

    def _stream_epoch(self) -> float:
        per_epoch = self._stream.samples_per_epoch
        return round(self.samples / per_epoch, 4) if per_epoch else float(self.epoch)

    def _event(self, event: str, message: str, round_index: int | None = None) -> None:
        self._log(
            {
                "kind": "event",
                "round": self.round if round_index is None else round_index,
                "event": event,
                "message": message,
            }
        )

    def _log(self, record: dict[str, Any]) -> dict[str, Any]:
        record = {"kind": record["kind"], "time_s": self.elapsed_s, **record}
        for logger in self._loggers:
            logger.log(record)
        self._progress.update(record)
        return record

    def _description(self) -> dict[str, Any]:
        return {
            "learners": self.replicas.learners,
            "engine": self.replicas.engine,
            "batch_size": self._stream.batch_size,
            "epochs": None if self._plan.config.steps is not None else self._plan.config.epochs,
            "steps": self._plan.config.steps,
            "samples_per_epoch": self._stream.samples_per_epoch,
            "device": str(self.replicas.device),
            "sync": repr(self.replicas.loop.sync),
            "model": type(self.replicas.central).__name__,
            "parameters": self.replicas.num_parameters,
            "run_dir": str(self.run_dir),
        }

    def _end_record(self) -> dict[str, Any]:
        last = self.history[-1] if self.history else {}
        known = {"kind", "time_s", "epoch", "round", "samples", "train_loss", "samples_per_s", "learners", "lr"}
        return {
            "kind": "end",
            "round": self.round,
            "samples": self.samples,
            "seconds": self.elapsed_s,
            "samples_per_s": self.throughput,
            "time_to_target_s": self.time_to_target,
            "learner_restarts": self._num_restarts,
            **{name: value for name, value in last.items() if name not in known},
        }

    def _rounds_left(self) -> int | None:
        if self._plan.config.steps is not None:
            return max(self._plan.config.steps - self.round, 0)
        return self._stream.rounds_left(self.replicas.group.num_all)

    def _steps_done(self) -> bool:
        return self._plan.config.steps is not None and self.round >= self._plan.config.steps


def lost_outcome(learners: int, device: torch.device) -> Outcome:
    """Stands for a round that ran but whose losses went down with a later one."""
    losses = torch.full((learners,), torch.nan, device=device)
    return Outcome(losses, torch.ones_like(losses, dtype=torch.bool), [True] * learners)
