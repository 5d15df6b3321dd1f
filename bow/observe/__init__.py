"""Progress, loggers, the run directory and its report."""

from bow.observe.loggers import JsonLinesLogger, Logger, SafeLogger, TensorBoardLogger
from bow.observe.progress import ProgressBar
from bow.observe.records import Record, read_records
from bow.observe.run_directory import RunDirectory, RunLock
from bow.observe.weights_and_biases import WandbLogger

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
