"""bow, as a user calls it."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import counted
from benchmarks.peers.referee import Referee, Watch
from benchmarks.peers.task import Job
from bow.training import train as train_learners
from bow.tuner.config import Objective, Tuner

if TYPE_CHECKING:
    from bow.training.run import Run


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
            validation=job.data.validation,
            metrics=(watch,),
            callbacks=(watch,),
            run_dir=Path(folder) / "run",
            seed=task.seed,
            progress=False,
            **chosen_by_bow(objective, task.evaluate_every),
        )
    return f"{result.engine}, {counted(result.learners, 'learner')}"


def chosen_by_bow(objective: Objective, evaluate_every: float) -> dict[str, Any]:
    """The arguments that leave learners and engine to bow.

    Its tuner measures anew in every training: choices of earlier ones, which it would keep on disk, do not count.
    """
    return {
        "learners": "auto",
        "engine": "auto",
        "tuner": Tuner(objective=objective, cache=False),
        "evaluate_every": evaluate_every,
    }


class BowWatch(Watch):
    """The metric by which everybody is evaluated: here bow's own evaluation asks it, so it stops the clock itself."""

    def __init__(self, referee: Referee) -> None:
        self._referee = referee
        self._run: Run | None = None
        super().__init__()

    def on_train_start(self, run: "Run") -> None:
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
