"""Progress, loggers, the run directory and its report."""

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
    from bow.observe.trackers import MlflowLogger as MlflowLogger
    from bow.observe.trackers import WandbLogger as WandbLogger


def __getattr__(name: str) -> Any:
    if name not in ("MlflowLogger", "WandbLogger"):
        raise AttributeError(f"module 'bow.observe' has no attribute {name!r}")
    from bow.observe import trackers

    return getattr(trackers, name)
