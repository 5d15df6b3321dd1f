"""Progress, loggers, the run directory and its report."""

import importlib
from typing import TYPE_CHECKING, Any

from bow.observe.loggers import JsonLinesLogger as JsonLinesLogger
from bow.observe.loggers import Logger as Logger
from bow.observe.loggers import SafeLogger as SafeLogger
from bow.observe.loggers import TensorBoardLogger as TensorBoardLogger
from bow.observe.progress import ProgressBar as ProgressBar
from bow.observe.records import Record as Record
from bow.observe.records import read_records as read_records
from bow.observe.run_directory import RunDirectory as RunDirectory
from bow.observe.run_directory import RunLock as RunLock

if TYPE_CHECKING:
    from bow.observe.mlflow import MlflowLogger as MlflowLogger
    from bow.observe.weights_and_biases import WandbLogger as WandbLogger

_LAZY = {"MlflowLogger": "bow.observe.mlflow", "WandbLogger": "bow.observe.weights_and_biases"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'bow.observe' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
