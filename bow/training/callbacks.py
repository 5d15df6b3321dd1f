"""Hooks into a training. A callback is any object with some of these methods."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bow.errors import SettingError, disk_reason, warn_user
from bow.values import whole

if TYPE_CHECKING:
    from bow.training.result import Result
    from bow.training.run import TrainingLoop


class Callback:
    """Base class with all hooks; inheriting from it is optional.

    `run` offers `replicas`, `round`, `samples`, `history` and `stop()`.

    With `dispatch="first_come"`, rounds run in groups: `on_round_end` is called for each round of a group once all
    have ended, and `run.round == run.replicas.rounds` holds in the last call.

    Example:
        >>> class Printer(Callback):
        ...     def on_epoch_end(self, run, record):
        ...         print(record["epoch"])
    """

    def on_train_start(self, run: "TrainingLoop") -> None:
        """Called before the first round."""

    def on_round_end(self, run: "TrainingLoop") -> None:
        """Called after every round; `run.replicas.last` has its losses and metrics."""

    def on_epoch_end(self, run: "TrainingLoop", record: Mapping[str, Any]) -> None:
        """Called after every epoch's evaluation; `record` is the record that loggers receive."""

    def on_train_end(self, run: "TrainingLoop", result: "Result") -> None:
        """Called after the last round, with the result that `bow.train` returns."""


class TraceRounds(Callback):
    """Records a timeline of some rounds in the run directory's `trace.json.gz`, for Perfetto or chrome://tracing.

    Args:
        first: first round to record, counted from 0; the earliest rounds compile and allocate. With
            `dispatch="first_come"`, recording starts after the next synchronisation task from there on.
        rounds: minimum number of consecutive rounds to record. With engine `graph`, every operator is recorded.

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
        """Start recording if the first round is to be recorded."""
        self._began = None
        self._ended = run.round >= self.first + self.rounds  # resumed after the rounds to record
        self._begin_if_due(run)

    def on_round_end(self, run: "TrainingLoop") -> None:
        """Start or end recording."""
        if run.round != run.replicas.rounds:  # later rounds of the group have run and were recorded as well
            return
        if self._began is not None and run.round >= self._began + self.rounds:
            self._write(run)
        self._begin_if_due(run)

    def on_train_end(self, run: "TrainingLoop", result: "Result") -> None:
        """Write the partial recording of a training that ended early."""
        if self._began is not None and run.round > self._began:
            self._write(run)
        if not self._ended:
            warn_user(
                f"{self!r} recorded nothing: the training ended after {run.round} rounds; "
                "use a smaller first, such as first=0",
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
            warn_user(f"{self.FILE} cannot be written ({disk_reason(error)}); training continues")
        self._began, self._ended = None, True

    def __repr__(self) -> str:
        return f"TraceRounds(first={self.first}, rounds={self.rounds})"


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check_callbacks(callbacks: Sequence[object]) -> None:
    if not isinstance(callbacks, Sequence):
        raise SettingError(f"callbacks must be a list of objects, got {callbacks!r}; put it in a list")
    for callback in callbacks:
        if isinstance(callback, type) or not any(hasattr(callback, hook) for hook in HOOKS):
            refuse_halving("callbacks", callback)
            if hasattr(callback, "why_over"):
                raise SettingError(
                    f"a rule that ends a training goes into stop=, got callbacks=[{callback!r}]; move it"
                )
            raise SettingError(f"callbacks must be objects with some of {', '.join(HOOKS)}, got {callback!r}")


def refuse_halving(setting: str, rule: object) -> None:
    if getattr(rule, "__name__", type(rule).__name__) == "Halving":
        raise SettingError(
            f"bow.Halving compares members of a sweep, got {setting}={rule!r}; use bow.sweep(..., stop=bow.Halving())"
        )


class Hooks:
    """Calls the hooks of the callbacks that implement them."""

    def __init__(self, callbacks: Sequence[object]) -> None:
        self._methods: dict[str, list[Any]] = {hook: [] for hook in HOOKS}
        for each, hook in itertools.product(callbacks, HOOKS):
            inherited = getattr(type(each), hook, None) is getattr(Callback, hook)  # does nothing
            if hasattr(each, hook) and not inherited:
                self._methods[hook].append(getattr(each, hook))

    def listen(self, hook: str) -> bool:
        return bool(self._methods[hook])

    def call(self, hook: str, *arguments: Any) -> None:
        for method in self._methods[hook]:
            method(*arguments)
