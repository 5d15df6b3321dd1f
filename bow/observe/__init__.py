"""Progress, loggers, the run directory and its report: everything that training says about itself."""

from bow.observe.json_lines import JsonLinesLogger
from bow.observe.logger import Logger, SafeLogger
from bow.observe.progress import Progress
from bow.observe.records import Record, read_records
from bow.observe.report import write_report
from bow.observe.run_directory import RunDirectory
from bow.observe.run_lock import RunLock
from bow.observe.tensorboard import TensorBoardLogger
from bow.observe.weights_and_biases import WandbLogger

__all__ = [
    "JsonLinesLogger",
    "Logger",
    "Progress",
    "Record",
    "RunDirectory",
    "RunLock",
    "SafeLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "read_records",
    "write_report",
]
