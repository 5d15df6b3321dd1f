"""What a training returns."""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn


@dataclass(frozen=True, eq=False)
class Result:
    """What `bow.train` returns.

    Attributes:
        model: the central model, a plain module in evaluation mode, on the CPU.
        history: one record per epoch: losses, metrics, throughput, learners.
        throughput: training samples per second over the steady part, warm-up and evaluation left out.
        learners: learners per device at the end; with a placed strategy those of all devices together.
        engine: the engine that ran, after any fallback.
        time_to_target: seconds from the first round until `target` was reached; None if it was not.
        run_dir: where config, records, report and model are.
        model_path: the file of the model: in another place where the run directory could not be written, None where
            no place could, or where another process has written it.
        report_path: the file of the report; None where it could not be written, or another process has written it.
        seconds: seconds from the first round to the end, evaluation included.
        calibration_s: seconds that trials took before the first round, to find engine and number of learners.
        interrupted_by: the signal that the training was asked to end by, with `on_interrupt="return"`.
        num_restarts: how often a learner diverged and started again from z.
    """

    model: nn.Module = field(repr=False)
    history: list[dict[str, Any]] = field(repr=False)
    throughput: float
    learners: int
    engine: str
    time_to_target: float | None
    run_dir: Path
    seconds: float
    model_path: Path | None = None
    report_path: Path | None = None
    calibration_s: float = 0.0
    num_restarts: int = 0
    interrupted_by: signal.Signals | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The last epoch's values of the validation data, by name."""
        from bow.observe.records import metrics

        return metrics(self.history[-1]) if self.history else {}
