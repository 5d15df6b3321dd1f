"""Records of a training for loggers and the progress bar; rank 0 includes events of all devices."""

import datetime
import functools
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bow.data import SyntheticSamples
from bow.devices import available_cores, processor
from bow.engines import Outcome
from bow.errors import BowError, disk_reason, reason, warn_user
from bow.observe import JsonLinesLogger, ProgressBar, SafeLogger
from bow.observe.records import FIELDS, SYNTHETIC
from bow.training.context import RunContext
from bow.training.metrics import mean_of

RECORD_INTERVAL_S = 0.5  # seconds of training between two records of kind `rounds`
WARNED_EVENTS = ("learner restarted", "engine changed")  # engines warn of them once; rank 0 does for other devices


class RunRecords:
    """Writes the records of a training."""

    def __init__(self, context: RunContext, progress: ProgressBar) -> None:
        self._context = context
        self._position = context.position
        self._replicas = context.replicas
        self._world = context.world
        self._progress = progress
        self._loggers: list[SafeLogger] = []
        if self._world.leads:
            own = JsonLinesLogger(context.directory.metrics_path)
            self._loggers = [SafeLogger(logger) for logger in (own, *context.config.run.loggers)]
        self._warned_of: set[tuple[int, str]] = set()
        self._unwritten: set[str] = set()  # what a warning has told of
        self._losses: list[Tensor] = []
        self._last = (0.0, context.position.samples)

    def log(self, record: dict[str, Any]) -> dict[str, Any]:
        record = {"kind": record["kind"], "time_s": self._position.elapsed_s, **record}
        for logger in self._loggers:
            logger.log(record)
        self._progress.update(record)
        return record

    def event(self, event: str, message: str, round_index: int | None = None) -> None:
        index = self._position.round if round_index is None else round_index
        self.log({"kind": "event", "round": index, "event": event, "message": message})

    def begin(self, rounds: int | None) -> None:
        context, config = self._context, self._context.config
        self._last = (0.0, self._position.samples)
        self.log(
            {
                "kind": "start",
                "rounds": rounds,
                "learners": self._replicas.learners,
                "engine": self._replicas.engine,
                "by_device": list(self._replicas.group.by_device),
                "batch_size": context.stream.batch_size,
                "epochs": None if config.steps is not None else config.epochs,
                "steps": config.steps,
                "samples_per_epoch": context.stream.samples_per_epoch,
                "device": str(self._replicas.device),
                "sync": repr(self._replicas.loop.sync),
                "model": type(self._replicas.central).__name__,
                "parameters": self._replicas.num_parameters,
                "run_dir": str(context.directory.path),
                **provenance(),
            }
        )
        if isinstance(config.data, SyntheticSamples):
            self.event(SYNTHETIC, "the data are synthetic: results do not apply to real data")
        if context.tuned.source != "given":
            self.log(context.tuned.record)

    def round_ended(self, outcome: Outcome) -> None:
        self._losses.append(outcome.losses)

    def rounds(self) -> None:
        self._own_events()
        seconds, samples = self._last
        now = self._position.meter.now
        if now - seconds < RECORD_INTERVAL_S:
            return
        rate = (self._position.samples - samples) / (now - seconds)
        loss = mean_of(self._losses)
        self._losses = []
        self._last = (now, self._position.samples)
        self.log({"kind": "rounds", "epoch": self._position.epochs, **self.place, "loss": loss, "samples_per_s": rate})

    def end(self, best_round: int | None) -> None:
        position = self._position
        last = position.history[-1] if position.history else {}
        self.log(
            {
                "kind": "end",
                "round": position.round,
                "samples": position.samples,
                "seconds": position.elapsed_s,
                "samples_per_s": position.meter.throughput,
                "time_to_target_s": position.time_to_target,
                "learner_restarts": self._context.num_restarts,
                "best_round": best_round,
                **{name: value for name, value in last.items() if name not in FIELDS},
            }
        )

    def close(self) -> None:
        for logger in self._loggers:
            logger.close()

    @property
    def place(self) -> dict[str, Any]:
        lr = float(self._replicas.optimizer.param_groups[0]["lr"])
        counted = {"round": self._position.round, "samples": self._position.samples}
        return {**counted, "learners": self._replicas.learners, "lr": lr}

    def gather_events(self) -> None:
        """Record the events of all devices, which must call this after the same round."""
        self._own_events()
        by_device = self._world.gather(self._replicas.loop.take_events()) or []
        for device, events in enumerate(by_device):
            for event in (each for each in events if each.event != "restart"):  # the same on all devices
                self.event(event.event, f"device {device}: {event.message}", event.round)
                if event.event in WARNED_EVENTS and (device, event.event) not in self._warned_of:
                    self._warned_of.add((device, event.event))
                    warn_user(f"device {device}: {event.message}")

    def attempt(self, write: Callable[[], Path], what: str, then: str) -> Path | None:
        """Write a file of the run; on failure warn and return None, so that the training continues."""
        try:
            return write()
        except Exception as error:
            why = reason(error) if isinstance(error, BowError) else disk_reason(error)
            tell = self.event if what in self._unwritten else self.warn_of
            tell("not written", f"the {what} cannot be written ({why}); {then}")
            self._unwritten.add(what)
            return None

    def warn_of(self, event: str, message: str) -> None:
        """Record an event, and warn of it, which the progress then leaves out."""
        warn_user(message)
        self.event(event, message)

    def _own_events(self) -> None:
        if not self._world.leads:
            return  # rank 0 collects them in gather_events
        for event in self._replicas.loop.take_events():
            self.event(event.event, event.message, event.round)


def provenance() -> dict[str, str]:
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_initialized() else ""  # type: ignore[no-untyped-call]
    bow, commit = sys.modules["bow"].__version__, _commit()
    words = sys.orig_argv
    first = 1 if len(words) > 1 and Path(words[1]).name == "bow" else 0
    return {
        "began": f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}",
        "command": shlex.join([Path(words[first]).name, *words[first + 1 :]]),  # `bow train ...`, `python train.py`
        **({"commit": commit} if commit else {}),
        "versions": f"bow {bow}, torch {torch.__version__}, Python {platform.python_version()}",
        "machine": f"{processor()}, {len(available_cores())} cores{gpu}",
    }


@functools.cache  # the imported code is that of the first call
def _commit() -> str | None:
    """Return the current directory's git commit, with "-dirty" if files differ; None outside a repository."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=2).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
