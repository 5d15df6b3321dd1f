"""Hooks into a training. A callback is any object with some of these methods."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bow.errors import SettingError, disk_reason
from bow.values import whole

if TYPE_CHECKING:
    from bow.training.result import Result
    from bow.training.run import TrainingLoop


class Callback:
    """The hooks that there are; inheriting from this class is optional.

    `run` offers `replicas`, `round`, `samples`, `history` and `stop()`.

    With `dispatch="first_come"`, several rounds run as one: `on_round_end` is called for each of them when all have
    ended, and `run.round == run.replicas.rounds` holds in the last call.

    Example:
        >>> class Printer(Callback):
        ...     def on_epoch_end(self, run, record):
        ...         print(record["epoch"])
    """

    def on_train_start(self, run: "TrainingLoop") -> None:
        """Before the first round."""

    def on_round_end(self, run: "TrainingLoop") -> None:
        """After every round; `run.replicas.last` has its losses and metrics."""

    def on_epoch_end(self, run: "TrainingLoop", record: Mapping[str, Any]) -> None:
        """After every epoch's evaluation; `record` is what the loggers get."""

    def on_train_end(self, run: "TrainingLoop", result: "Result") -> None:
        """After the last round, with what `bow.train` returns."""


class TraceRounds(Callback):
    """Writes what runs when in some rounds to `trace.json.gz` in the run directory, for Perfetto or chrome://tracing.

    Args:
        first: the first round that is recorded, counted from 0; the very first ones compile and allocate. With
            `dispatch="first_come"`, the first that begins behind a synchronisation task from there on.
        rounds: how many at least, one after another. With engine `graph`, every operator of each is recorded.

    Raises:
        SettingError: a negative `first`, or `rounds` below 1.

    Warns:
        UserWarning: the training ended before anything was recorded.

    Example:
        >>> TraceRounds(first=100, rounds=5)
        TraceRounds(first=100, rounds=5)
    """

    FILE = "trace.json.gz"

    def __init__(self, first: int = 20, rounds: int = 10) -> None:
        self.first = whole("first", first, least=0)
        self.rounds = whole("rounds", rounds)
        self._began: int | None = None
        self._ended = False

    def on_train_start(self, run: "TrainingLoop") -> None:
        """Begin at once where the first round is wanted."""
        self._began = None
        self._ended = run.round >= self.first + self.rounds  # of a training that is resumed behind them
        self._begin_if_due(run)

    def on_round_end(self, run: "TrainingLoop") -> None:
        """Begin or end."""
        if run.round != run.replicas.rounds:  # later rounds have run as well, and have been recorded as this one
            return
        if self._began is not None and run.round >= self._began + self.rounds:
            self._write(run)
        self._begin_if_due(run)

    def on_train_end(self, run: "TrainingLoop", result: "Result") -> None:
        """Write what there is of a training that ended early."""
        if self._began is not None and run.round > self._began:
            self._write(run)
        if not self._ended:
            warnings.warn(
                f"{self!r} recorded nothing: the training ended after {run.round} rounds; "
                "use a smaller first, such as first=0",
                stacklevel=2,
            )

    def _begin_if_due(self, run: "TrainingLoop") -> None:
        if self._began is None and not self._ended and run.round >= self.first:
            run.replicas.timeline.start()
            self._began = run.round

    def _write(self, run: "TrainingLoop") -> None:
        timeline = run.replicas.timeline.take()
        try:
            if run.replicas.world.leads:
                timeline.save(run.run_dir / self.FILE)
        except OSError as error:
            warnings.warn(f"{self.FILE} cannot be written ({disk_reason(error)}); the training goes on", stacklevel=2)
        self._began, self._ended = None, True

    def __repr__(self) -> str:
        return f"TraceRounds(first={self.first}, rounds={self.rounds})"


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
        self._methods: dict[str, list[Any]] = {hook: [] for hook in HOOKS}
        for each, hook in itertools.product(callbacks, HOOKS):
            inherited = getattr(type(each), hook, None) is getattr(Callback, hook)  # and empty
            if hasattr(each, hook) and not inherited:
                self._methods[hook].append(getattr(each, hook))

    def listen(self, hook: str) -> bool:
        return bool(self._methods[hook])

    def call(self, hook: str, *arguments: Any) -> None:
        for method in self._methods[hook]:
            method(*arguments)
