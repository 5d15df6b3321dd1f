"""Progress, loggers, the run directory and its report."""

import importlib
from typing import TYPE_CHECKING, Any

from bow.observe.loggers import JsonLinesLogger, Logger, SafeLogger, TensorBoardLogger
from bow.observe.progress import ProgressBar
from bow.observe.records import Record, read_records
from bow.observe.run_directory import RunDirectory, RunLock

if TYPE_CHECKING:
    from bow.observe.mlflow import MlflowLogger as MlflowLogger
    from bow.observe.weights_and_biases import WandbLogger as WandbLogger

__all__ = [
    "JsonLinesLogger",
    "Logger",
    "MlflowLogger",
    "ProgressBar",
    "Record",
    "RunDirectory",
    "RunLock",
    "SafeLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "read_records",
]


_LAZY = {"MlflowLogger": "bow.observe.mlflow", "WandbLogger": "bow.observe.weights_and_biases"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'bow.observe' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
