import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bow.observe import JsonLinesLogger, RunDirectory

ROUNDS = 23
SAMPLES = 1437


def training(epochs: int = 3, *, validation: bool = True, finished: bool = True) -> list[dict[str, Any]]:
    """The records of a training run: two learners, and a third one from the second epoch."""
    records: list[dict[str, Any]] = [
        {
            "kind": "start",
            "time_s": 0.0,
            "learners": 2,
            "engine": "eager",
            "batch_size": 16,
            "epochs": epochs,
            "steps": None,
            "rounds": epochs * ROUNDS,
            "samples_per_epoch": SAMPLES,
            "device": "cpu",
            "sync": "SMA(alpha=None)",
            "model": "LeNet",
            "parameters": 431080,
        }
    ]
    for epoch in range(1, epochs + 1):
        round_, learners = epoch * ROUNDS, 2 if epoch == 1 else 3
        speed = {"samples_per_s": 1000.0 + epoch, "learners": learners, "lr": 0.1}
        for part in (1, 2):
            where = {"round": round_ - 10 // part, "epoch": epoch - 0.5 / part, "samples": epoch * SAMPLES - 64}
            records.append({"kind": "rounds", "time_s": epoch - 0.5 / part, **where, "loss": math.exp(-epoch), **speed})
        if epoch == 1:
            message = "3 learners: throughput grew"
            records.append(
                {
                    "kind": "event",
                    "time_s": 1.0,
                    "round": round_,
                    "event": "learners changed",
                    "message": message,
                }
            )
        records.append(
            {
                "kind": "epoch",
                "time_s": float(epoch),
                "epoch": epoch,
                "round": round_,
                "samples": epoch * SAMPLES,
                "train_loss": math.exp(-epoch),
                **speed,
                **(_metrics(epoch) if validation else {}),
            }
        )
    if finished:
        records.append(
            {
                "kind": "end",
                "time_s": epochs + 0.1,
                "round": epochs * ROUNDS,
                "samples": epochs * SAMPLES,
                "seconds": epochs + 0.1,
                "samples_per_s": 1234.5,
                "time_to_target_s": 2.0,
                "learner_restarts": 0,
                **(_metrics(epochs) if validation else {}),
            }
        )
    return records


def _metrics(epoch: int) -> dict[str, float]:
    return {"loss": math.exp(-epoch) + 0.05, "accuracy": 1 - 0.5**epoch}


@pytest.fixture
def calibration() -> dict[str, Any]:
    """The record of how engine and learners were found: one setting ran, one is faster, one was not tried."""
    rows = [
        {
            "engine": "eager",
            "learners": 1,
            "samples_per_s": 1000.0,
            "status": "measured",
            "why": "50.0 % of the choice",
        },
        {"engine": "graph", "learners": 2, "samples_per_s": 2000.0, "status": "chosen", "why": "the highest"},
        {"engine": "fused", "learners": 1, "samples_per_s": None, "status": "not tried", "why": "takes <12 s>"},
    ]
    bounds = {1000.0: (990.0, 1010.0), 2000.0: (1980.0, 2010.0), None: (None, None)}
    for row in rows:
        row |= dict(zip(("low", "high"), bounds[row["samples_per_s"]], strict=True))  # type: ignore[index]
        tried = row["status"] != "not tried"
        row |= {"threads": 1, "repeats": 5 * tried, "seconds": 1.5 * tried, "compile_s": 0.0, "efficiency": 1.0}
    return {
        "kind": "calibration",
        "time_s": 0.0,
        "source": "calibration",
        "engine": "graph",
        "learners": 2,
        "summary": "calibration of 2 settings took 3.0 s; chosen: graph, 2 learners",
        "rows": rows,
    }


@pytest.fixture
def evaluation() -> dict[str, Any]:
    """The record of an evaluation within the first epoch."""
    where = {"epoch": 0.5, "round": 11, "samples": 704, "learners": 2, "lr": 0.1}
    return {"kind": "evaluation", "time_s": 0.5, **where, "loss": 0.7, "accuracy": 0.4}


@pytest.fixture
def records() -> Callable[..., list[dict[str, Any]]]:
    return training


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunDirectory]:
    """Makes a run directory as training leaves it."""

    def make(name: str = "run", **options: Any) -> RunDirectory:
        directory = RunDirectory.create(tmp_path / name, name)
        directory.write_config(
            {"optimizer": {"lr": 0.1}, "validation": {"target": {"accuracy": 0.6}}, "clip_norm": None}
        )
        logger = JsonLinesLogger(directory.metrics_path)
        for record in training(**options):
            logger.log(record)
        logger.close()
        return directory

    return make
