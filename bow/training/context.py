"""State shared by the parts of a training: its settings, learners, data and progress."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bow.cluster import World
from bow.data import BatchStream
from bow.observe import RunDirectory
from bow.training.config import TrainConfig
from bow.training.metrics import Metric
from bow.training.replicas import Replicas
from bow.training.trials import Trials
from bow.training.tuning import Tuned
from bow.tuner import Tuner

if TYPE_CHECKING:
    from bow.training.evaluation import Evaluator
    from bow.training.placed import PartitionLearners

Learners: TypeAlias = "Replicas | PartitionLearners"  # each on one device, or its operators in tiles on several


@dataclass
class Meter:
    """Measures training time and samples, excluding evaluation, and throughput after the warm-up."""

    seconds: float = 0.0
    samples: int = 0
    steady_from: tuple[float, int] | None = None
    _started: float = field(default_factory=time.perf_counter)

    def resume(self) -> None:
        self._started = time.perf_counter()

    def pause(self) -> None:
        self.seconds += time.perf_counter() - self._started

    @property
    def now(self) -> float:
        return self.seconds + time.perf_counter() - self._started

    @property
    def throughput(self) -> float:
        """Samples per second after the warm-up, or in all if nothing follows it; valid while paused."""
        seconds, samples = self.steady_from or (0.0, 0)
        if samples == self.samples:
            seconds, samples = 0.0, 0
        return (self.samples - samples) / max(self.seconds - seconds, 1e-9)


@dataclass
class Position:
    """Progress of a training."""

    samples_per_epoch: int | None
    round: int = 0  # completed
    samples: int = 0  # processed by all learners together
    epoch: int = 0  # completed
    history: list[dict[str, Any]] = field(default_factory=list)  # the records of kind "epoch"
    time_to_target: float | None = None
    meter: Meter = field(default_factory=Meter)
    began: float = field(default_factory=time.perf_counter)
    elapsed_before: float = 0.0  # seconds of earlier parts of a training that was resumed

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first round, including evaluation and earlier parts of a resumed training."""
        return self.elapsed_before + time.perf_counter() - self.began

    @property
    def epochs(self) -> float:
        return round(self.samples / self.samples_per_epoch, 4) if self.samples_per_epoch else float(self.epoch)

    def start(self) -> None:
        self.began = time.perf_counter()

    def state(self) -> dict[str, Any]:
        counted = {name: getattr(self, name) for name in ("round", "samples", "epoch", "elapsed_s")}
        return {**counted, "history": list(self.history)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.round, self.samples, self.epoch = state["round"], state["samples"], state["epoch"]
        self.history[:] = state["history"]
        self.elapsed_before = state["elapsed_s"]


@dataclass(frozen=True)
class RunContext:
    """Everything that a training starts from."""

    config: TrainConfig
    replicas: Learners
    stream: BatchStream
    position: Position
    keeps_checkpoints: bool  # whether they remain after the training; "auto" deletes its own
    evaluate: "Evaluator | None"
    directory: RunDirectory
    tuned: Tuned  # initial settings; callbacks and tuner may change the number of learners later
    most_learners: int  # upper limit of the tuner while training; 0: it changes nothing
    tuner: Tuner
    fresh: bool  # whether the run directory held no earlier run
    threads: int  # torch's threads for evaluation: learning tasks may use fewer
    started_with: list[dict[str, Any]]  # the optimizer's settings when training began, before any resume
    trajectory: Mapping[str, Any]  # other settings that the weights depend on
    trials: Callable[[], Trials]  # makes learners to time beside the training's own
    resumed: Path | None  # run directory of the checkpoint that the training continues from

    @property
    def world(self) -> World:
        return self.replicas.world

    @property
    def target(self) -> Mapping[str, float]:
        return dict(self.config.validation.target or {})

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {metric.name: metric for metric in self.config.validation.metrics}

    @property
    def num_restarts(self) -> int:
        return int(self.world.sum_numbers([self.replicas.loop.num_restarts])[0])
