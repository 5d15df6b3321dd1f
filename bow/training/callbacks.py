"""Hooks into a training. A callback is any object with some of these methods."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bow.errors import SettingError

if TYPE_CHECKING:
    from bow.training.result import Result
    from bow.training.run import Run


class Callback:
    """The hooks that there are; inheriting from this class is optional.

    `run` offers `replicas`, `round`, `samples`, `history` and `stop()`.

    Example:
        >>> class Printer(Callback):
        ...     def on_epoch_end(self, run, record):
        ...         print(record["epoch"])
    """

    def on_train_start(self, run: "Run") -> None:
        """Before the first round."""

    def on_round_end(self, run: "Run") -> None:
        """After every round; `run.replicas.last` has its losses and metrics."""

    def on_epoch_end(self, run: "Run", record: Mapping[str, Any]) -> None:
        """After every epoch's evaluation; `record` is what the loggers get."""

    def on_train_end(self, run: "Run", result: "Result") -> None:
        """After the last round, with what `bow.train` returns."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check_callbacks(callbacks: Sequence[object]) -> None:
    """Refuse objects that have none of the hooks, such as a class that was not called."""
    if not isinstance(callbacks, Sequence):
        raise SettingError(f"callbacks must be a list of objects, got {callbacks!r}; put it in a list")
    for callback in callbacks:
        if isinstance(callback, type) or not any(hasattr(callback, hook) for hook in HOOKS):
            raise SettingError(f"callbacks must be objects with some of {', '.join(HOOKS)}, got {callback!r}")


class Hooks:
    """Calls one hook of all callbacks that have it."""

    def __init__(self, callbacks: Sequence[object]) -> None:
        self._methods = {h: [getattr(c, h) for c in callbacks if hasattr(c, h)] for h in HOOKS}

    def call(self, hook: str, *arguments: Any) -> None:
        """Call `hook` of every callback, in their order."""
        for method in self._methods[hook]:
            method(*arguments)
