"""When a training ends before its time: rules that are asked after every epoch."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bow.errors import SettingError
from bow.training.metrics import Metric, is_higher_better
from bow.values import number, whole


@runtime_checkable
class StopRule(Protocol):
    """A rule by which a training, or a member of a sweep, ends before its time.

    Example:
        >>> class Hopeless:
        ...     def why_over(self, training):
        ...         return "hopeless" if training.history[-1]["train_loss"] > 10 else None
        >>> isinstance(Hopeless(), StopRule)
        True
    """

    def why_over(self, training: Any) -> str | None:
        """Asked after every epoch: why it ends, which its `stopped` will be; None: it goes on.

        `training.history` has a record for each epoch. Of a sweep it is the `bow.members.Member`, of `bow.train` what
        callbacks get.
        """


def value_of(record: Mapping[str, Any], metric: str) -> float:
    """A value of an epoch's record; where the validation data give none, that of training."""
    value = record.get(metric, record.get(f"train_{metric}"))
    if value is None:
        raise _unknown(metric, [name for name in record if name not in ("epoch", "round", "samples", "lr", "seconds")])
    return float(value)


def _unknown(metric: str, known: Iterable[str]) -> SettingError:
    return SettingError(f"stop looks at {metric!r}, which an epoch does not have; it has {', '.join(known)}")


@dataclass(frozen=True)
class EarlyStopping:
    """End a training, or a member of a sweep, that has not become better for some epochs.

    Args:
        metric: `"loss"` or the name of a metric of the validation data.
        patience: epochs without a better value after which it ends.
        least: by how much a value has to be better to count.
        higher_is_better: which way; None: as the metric says, and of what a step returns a loss or an error the lower,
            everything else the higher.

    Raises:
        SettingError: a value that cannot be carried out.

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
        """`"patience"`, or None."""
        return "patience" if self.is_over(training.history) else None

    def is_over(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a training with these epochs ends."""
        sign = 1 if is_higher_better(self.metric, self.higher_is_better) else -1
        best, since = -math.inf, 0
        for record in history:
            value = sign * value_of(record, self.metric)
            since += 1
            if value > best + self.least:
                best, since = value, 0
        return since >= self.patience


def check_rules(stop: Any, kinds: Any = StopRule, known: str = "bow.EarlyStopping") -> tuple[Any, ...]:
    """The rules by which a training ends, given alone or as several."""
    rules = () if stop is None else tuple(stop) if isinstance(stop, Sequence) and not isinstance(stop, str) else (stop,)
    for rule in rules:
        if not isinstance(rule, kinds) or isinstance(rule, type):
            raise SettingError(f"stop must be {known} or an object with why_over(training), got {rule!r}")
    return rules


def check_metric(metric: Any, higher_is_better: Any) -> None:
    """Refuse what is no name, and no direction."""
    if not isinstance(metric, str) or not metric:
        raise SettingError(
            f"metric must be 'loss' or the name of a metric, got {metric!r}; give other settings by name"
        )
    if not isinstance(higher_is_better, bool | None):
        raise SettingError(f"higher_is_better must be True, False or None, got {higher_is_better!r}")


def directed(rules: Iterable[Any], metrics: Iterable[Metric], names: Sequence[str] | None) -> tuple[Any, ...]:
    """The rules, with the way in which their metrics are better; `names` are what an epoch has, if that is known."""
    ways = {metric.name: metric.higher_is_better for metric in metrics}
    found: list[Any] = []
    for rule in rules:
        looks = hasattr(rule, "higher_is_better")  # at a metric, as EarlyStopping and Halving do
        if looks and names is not None and rule.metric not in names:
            raise _unknown(rule.metric, names)
        if looks and rule.higher_is_better is None and rule.metric in ways:
            rule = copy.copy(rule)
            object.__setattr__(rule, "higher_is_better", ways[rule.metric])  # they are frozen
        found.append(rule)
    return tuple(found)


def names_of_epochs(metrics: Iterable[Metric]) -> list[str]:
    """What an epoch has by which a rule can end a training, where no step returns values of its own."""
    return ["loss", "train_loss", *(metric.name for metric in metrics)]
