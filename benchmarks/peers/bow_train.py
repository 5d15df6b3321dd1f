"""bow, as a user calls it."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import bow
from benchmarks.harness import counted
from benchmarks.peers.referee import Referee, Watch
from benchmarks.peers.task import Job
from bow.training import train as train_learners
from bow.tuner.config import Objective, Tuner

if TYPE_CHECKING:
    from bow.training.run import TrainingLoop


def train(job: Job) -> str:
    """Train with as many learners as give the highest throughput."""
    return run(job, "throughput")


def train_for_goodput(job: Job) -> str:
    """Train with as many as give the most samples per second times what a sample is worth."""
    return run(job, "goodput")


def run(job: Job, objective: Objective) -> str:
    """Train by `bow.train`, and say what ran."""
    task = job.task
    watch = BowWatch(job.referee)
    with tempfile.TemporaryDirectory() as folder:
        result = train_learners(
            job.build(),
            job.data.train,
            job.loss,
            optimizer=job.make_optimizer,
            batch_size=job.choice.batch_size,
            epochs=task.epochs,
            devices="cuda" if task.device == "cuda" else "cpu",
            learners=tuner_of(objective),
            validation=bow.Validation(job.data.validation, metrics=(watch,), every=task.evaluate_every),
            callbacks=(watch,),
            run=bow.Run(Path(folder) / "run", progress=False),
            seed=task.seed,
        )
    return f"{result.engine}, {counted(result.learners, 'learner')}"


def tuner_of(objective: Objective) -> Tuner:
    """A tuner that measures anew in every training: choices of earlier ones, kept on disk, do not count."""
    return Tuner(objective=objective, cache=False)


class BowWatch(Watch):
    """The metric by which everybody is evaluated: here bow's own evaluation asks it, so it stops the clock itself."""

    def __init__(self, referee: Referee) -> None:
        self._referee = referee
        self._run: TrainingLoop | None = None
        super().__init__()

    def on_train_start(self, run: "TrainingLoop") -> None:
        """Before the first round."""
        self._run = run

    def reset(self) -> None:
        """An evaluation begins."""
        super().reset()
        if self._run is not None:
            self._referee.pause()

    def compute(self) -> float:
        """An evaluation ends."""
        accuracy = super().compute()
        if self._run is not None:
            if self._referee.note(self._run.samples, accuracy, self.is_finite):
                self._run.stop()
            self._referee.resume()
        return accuracy
