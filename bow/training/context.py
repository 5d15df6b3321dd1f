"""What the parts of a training share: what it was given, its learners and data, and how far it is."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from bow.cluster import World
from bow.data import BatchStream
from bow.observe import RunDirectory
from bow.training.config import TrainConfig
from bow.training.metrics import Metric
from bow.training.replicas import Replicas
from bow.training.tuning import Tuned
from bow.tuner import Tuner

if TYPE_CHECKING:
    from bow.training.evaluation import Evaluator
    from bow.training.partition_learners import PartitionLearners

Learners: TypeAlias = "Replicas | PartitionLearners"
"""What a training trains: each learner on one device, or its operators in tiles on several."""


@dataclass
class Meter:
    """Training time and samples, evaluation left out, and the steady part of both."""

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
        """Samples per second of the steady part, or of all where there is none; while time is not counted."""
        seconds, samples = self.steady_from or (0.0, 0)
        if samples == self.samples:
            seconds, samples = 0.0, 0
        return (self.samples - samples) / max(self.seconds - seconds, 1e-9)


@dataclass
class Position:
    """How far a training is."""

    samples_per_epoch: int | None
    round: int = 0  # completed
    samples: int = 0  # seen by all learners together
    epoch: int = 0  # completed
    history: list[dict[str, Any]] = field(default_factory=list)  # the records of kind "epoch"
    time_to_target: float | None = None
    meter: Meter = field(default_factory=Meter)
    began: float = field(default_factory=time.perf_counter)
    elapsed_before: float = 0.0  # seconds of earlier parts of a training that was resumed

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first round, evaluation and earlier parts of a resumed training included."""
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
    """What a training was given and begins with."""

    config: TrainConfig
    replicas: Learners
    stream: BatchStream
    position: Position
    keeps_checkpoints: bool  # whether they stay when the training has ended; "auto" deletes its own
    evaluate: "Evaluator | None"
    directory: RunDirectory
    tuned: Tuned  # what the training began with; callbacks and tuner may have changed the number of learners since
    most_learners: int  # as many as the tuner may go up to while training; 0: it changes nothing
    tuner: Tuner
    fresh: bool  # whether nothing of a run was in the run directory before
    threads: int  # torch's threads for evaluation: learning tasks may have been given fewer
    started_with: list[dict[str, Any]]  # the optimizer's settings when training began, before any resume
    trajectory: Mapping[str, Any]  # what else the weights depend on

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
