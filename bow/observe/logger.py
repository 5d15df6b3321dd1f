"""What a logger is, and how training is kept safe from one that fails."""

import warnings
from typing import Protocol, runtime_checkable

from bow.observe.records import Record


@runtime_checkable
class Logger(Protocol):
    """Anything that takes records, such as a file or a dashboard.

    Example:
        >>> class Printer:
        ...     def log(self, record):
        ...         print(record["kind"])
        ...     def close(self):
        ...         pass
        >>> Printer().log({"kind": "start", "time_s": 0.0})
        start
    """

    def log(self, record: Record) -> None:
        """Take one record; `bow.observe.records` says what is in it."""

    def close(self) -> None:
        """Write what is still held back. Called once, also after an error in training."""


class SafeLogger:
    """Passes records on to a logger until that raises; then warns once and leaves it alone.

    Hours of training must not be lost because a disk is full or a dashboard changed its interface.

    Args:
        logger: the logger that is not trusted.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self.failed = False

    def log(self, record: Record) -> None:
        """Pass one record on."""
        if self.failed:
            return
        try:
            self.logger.log(record)
        except Exception as error:
            self._drop(error)

    def close(self) -> None:
        """Close the logger, once, also if it failed before."""
        try:
            self.logger.close()
        except Exception as error:
            if not self.failed:
                self._drop(error)

    def _drop(self, error: Exception) -> None:
        self.failed = True
        name = type(self.logger).__name__
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"{name} failed and is not used any more ({reason}); training goes on", stacklevel=3)
