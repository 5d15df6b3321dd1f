"""Early stopping: rules that are evaluated after every epoch."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bow.errors import SettingError
from bow.training.callbacks import refuse_halving
from bow.training.metrics import Metric, is_higher_better
from bow.values import number, shortened, whole

OF_EVERY_EPOCH = ("kind", "time_s", "epoch", "round", "samples", "lr", "seconds")  # of records, which rules cannot use


@runtime_checkable
class StopRule(Protocol):
    """A rule that ends a training, or a member of a sweep, early.

    Example:
        >>> class Hopeless:
        ...     def why_over(self, training):
        ...         return "hopeless" if training.history[-1]["train_loss"] > 10 else None
        >>> isinstance(Hopeless(), StopRule)
        True
    """

    def why_over(self, training: Any) -> str | None:
        """Return why the training ends, which becomes its `stopped`, or None; called after every epoch.

        `training.history` has a record for each epoch. In a sweep, `training` is the `bow.members.Member`; in
        `bow.train`, it is the `run` of callbacks.
        """


def first_reason(rules: Iterable[StopRule], training: Any) -> str | None:
    """Return the reason of the first rule that ends a training, or None."""
    for rule in rules:
        if (why := rule.why_over(training)) is not None:
            if not isinstance(why, str):
                raise SettingError(
                    f"{type(rule).__name__}.why_over returned {shortened(why)}; return the reason to end as a string, "
                    "or None"
                )
            return why
    return None


def value_of(record: Mapping[str, Any], metric: str) -> float:
    """Return a value of an epoch's record: of the validation data, else of training."""
    value = record.get(metric, record.get(f"train_{metric}"))
    if value is None:
        raise _unknown(metric, [name for name in record if name not in OF_EVERY_EPOCH])
    return float(value)


def _unknown(metric: str, known: Iterable[str]) -> SettingError:
    return SettingError(f"stop monitors {metric!r}, which is not recorded; choose from {', '.join(known)}")


@dataclass(frozen=True)
class EarlyStopping:
    """End a training, or a member of a sweep, that has not improved for some epochs.

    Args:
        metric: `"loss"` or the name of a metric of the validation data.
        patience: epochs without improvement after which it ends.
        least: the smallest difference that counts as an improvement.
        higher_is_better: the direction of improvement; None: as the metric declares. Of a step's values, losses and
            errors improve downwards, all others upwards.

    Raises:
        SettingError: an invalid value.

    Example:
        >>> EarlyStopping(patience=1).is_over([{"loss": 1.0}, {"loss": 0.5}, {"loss": 0.6}])
        True
    """

    metric: str = "loss"
    patience: int = 3
    least: float = 0.0
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        check_metric(self.metric, self.higher_is_better)
        whole("patience", self.patience)
        number("least", self.least, least=0)

    def why_over(self, training: Any) -> str | None:
        """Return `"patience"` if the training ends, else None."""
        return "patience" if self.is_over(training.history) else None

    def is_over(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether a training with these epochs ends."""
        sign = 1 if is_higher_better(self.metric, self.higher_is_better) else -1
        best, best_at, epoch = -math.inf, 0.0, 0.0
        for index, record in enumerate(history, 1):
            value = sign * value_of(record, self.metric)
            epoch = record.get("epoch", index)  # a round may complete several
            if value > best + self.least:
                best, best_at = value, epoch
        return epoch - best_at >= self.patience


def check_rules(stop: Any, kinds: Any = StopRule, known: str = "bow.EarlyStopping") -> tuple[Any, ...]:
    rules = () if stop is None else tuple(stop) if isinstance(stop, Sequence) and not isinstance(stop, str) else (stop,)
    for rule in rules:
        if not isinstance(rule, kinds):
            refuse_halving("stop", rule)
        if not isinstance(rule, kinds) or isinstance(rule, type):
            raise SettingError(f"stop must be {known} or an object with why_over(training), got {rule!r}")
    return rules


def check_metric(metric: Any, higher_is_better: Any) -> None:
    if not isinstance(metric, str) or not metric:
        raise SettingError(
            f"metric must be 'loss' or the name of a metric, got {metric!r}; give other settings by name"
        )
    if not isinstance(higher_is_better, bool | None):
        raise SettingError(f"higher_is_better must be True, False or None, got {higher_is_better!r}")


def with_directions(rules: Iterable[Any], metrics: Iterable[Metric], names: Sequence[str] | None) -> tuple[Any, ...]:
    """Return the rules with the direction of their metrics; `names` are the values of an epoch, if known."""
    ways = {metric.name: metric.higher_is_better for metric in metrics}
    found: list[Any] = []
    for rule in rules:
        looks = hasattr(rule, "higher_is_better")  # EarlyStopping and Halving have a metric
        if looks and names is not None and rule.metric not in names:
            raise _unknown(rule.metric, names)
        if looks and rule.higher_is_better is None and rule.metric in ways:
            rule = copy.copy(rule)
            object.__setattr__(rule, "higher_is_better", ways[rule.metric])  # a frozen dataclass
        found.append(rule)
    return tuple(found)


def names_of_epochs(metrics: Iterable[Metric]) -> list[str]:
    """Return the names of an epoch's values that rules can use, if no step returns its own."""
    return ["loss", "train_loss", *(metric.name for metric in metrics)]
