"""Progress, loggers, the run directory and its report."""

from typing import TYPE_CHECKING, Any

from bow.observe.loggers import JsonLinesLogger, Logger, SafeLogger, TensorBoardLogger
from bow.observe.progress import ProgressBar
from bow.observe.records import Record, read_records
from bow.observe.run_directory import RunDirectory, RunLock

if TYPE_CHECKING:
    from bow.observe.weights_and_biases import WandbLogger as WandbLogger

__all__ = [
    "JsonLinesLogger",
    "Logger",
    "ProgressBar",
    "Record",
    "RunDirectory",
    "RunLock",
    "SafeLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "read_records",
]


def __getattr__(name: str) -> Any:
    if name != "WandbLogger":
        raise AttributeError(f"module 'bow.observe' has no attribute {name!r}")
    from bow.observe import weights_and_biases

    return weights_and_biases.WandbLogger
