"""Metrics of the central model."""

import abc
import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bow.errors import SettingError, reason
from bow.observe.records import FIELDS

RESERVED = FIELDS | {"loss"}  # names that bow uses in records
IGNORED_LABEL = -100  # the target that torch's cross entropy ignores by default


def check_names(what: str, names: Iterable[object]) -> None:
    seen: set[object] = set()
    for name in names:
        if not isinstance(name, str) or not name:
            raise SettingError(f"{what} needs a name, a text such as 'accuracy', got {name!r}; give it one")
        if name in RESERVED:
            raise SettingError(f"{what} is named {name!r}, a name that records use already; rename it")
        if name in seen:
            raise SettingError(f"{what} and another one have the name {name!r}; rename one")
        seen.add(name)


class Metric(abc.ABC):
    """A value over the whole validation data, accumulated batch by batch.

    Attributes:
        name: its name in records, and in `target`.
        higher_is_better: the direction in which a `target` is reached.
        best: the best possible value, which a target must not exceed; None: no limit.
    """

    name: str
    higher_is_better: bool = True
    best: float | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abc.abstractmethod
    def reset(self) -> None:
        """Reset the accumulated state."""

    @abc.abstractmethod
    def applies(self, outputs: Any, targets: Any) -> bool:
        """Whether the metric can be computed from such outputs and targets."""

    @abc.abstractmethod
    def update(self, outputs: Any, targets: Any) -> None:
        """Accumulate the outputs of the model and the targets of one batch."""

    @abc.abstractmethod
    def compute(self) -> float:
        """Return the value over all batches since `reset`."""


class Accuracy(Metric):
    """The share of targets whose class has the largest output.

    Outputs are `[batch, classes, ...]` with targets `[batch, ...]`, as for `cross_entropy`, or `[batch, ..., classes]`
    as language models return them. Where both fit, classes are dimension 1.

    Args:
        ignore: targets of this value are not counted, as with the loss's `ignore_index`.

    Example:
        >>> accuracy = Accuracy()
        >>> accuracy.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        >>> accuracy.compute()
        0.5
    """

    name = "accuracy"
    best = 1.0

    def __init__(self, ignore: int = IGNORED_LABEL) -> None:
        self.ignore = ignore
        self.reset()

    def __repr__(self) -> str:
        return "Accuracy()" if self.ignore == IGNORED_LABEL else f"Accuracy(ignore={self.ignore})"

    def reset(self) -> None:
        self._correct = 0
        self._count = 0

    def applies(self, outputs: Any, targets: Any) -> bool:
        """Whether targets are class indices, and outputs have one more dimension, of at least two classes."""
        are_tensors = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
        if not are_tensors or targets.is_floating_point() or outputs.dim() != targets.dim() + 1:
            return False
        return bool(outputs.shape[_class_dimension(outputs, targets)] > 1)

    def update(self, outputs: Any, targets: Any) -> None:
        predicted = outputs.argmax(_class_dimension(outputs, targets))
        counted = targets != self.ignore
        self._correct += int(((predicted == targets) & counted).sum())
        self._count += int(counted.sum())

    def compute(self) -> float:
        return self._correct / max(self._count, 1)


DEFAULT_METRICS = (Accuracy(),)


def _class_dimension(outputs: Tensor, targets: Tensor) -> int:
    return 1 if outputs.dim() > 1 and outputs.shape[:1] + outputs.shape[2:] == targets.shape else -1


class TorchMetric(Metric):
    """Adapter for a metric of torchmetrics."""

    def __init__(self, name: str, metric: Any) -> None:
        self.name = name
        self.higher_is_better = is_higher_better(name, metric.higher_is_better)
        self._metric = copy.deepcopy(metric)  # metrics of a collection share state

    def __repr__(self) -> str:
        return repr(self._metric)

    def reset(self) -> None:
        self._metric.reset()

    def applies(self, outputs: Any, targets: Any) -> bool:
        return isinstance(outputs, Tensor) and isinstance(targets, Tensor)

    def update(self, outputs: Any, targets: Any) -> None:
        try:
            self._metric.to(outputs.device).update(outputs, targets)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SettingError(
                f"the metric {self.name} of torchmetrics does not take outputs {list(outputs.shape)} with targets "
                f"{list(targets.shape)} ({reason(error)}); give one that does"
            ) from error

    def compute(self) -> float:
        value: float = self._metric.compute()
        return value


def as_metrics(metrics: Any) -> Any:
    """Wrap metrics of torchmetrics and flatten its collections; return other values unchanged."""
    if not isinstance(metrics, Sequence) or not any(isinstance(each, nn.Module) for each in metrics):
        return metrics
    found: list[Any] = []
    for each in metrics:
        if isinstance(each, nn.ModuleDict):
            found += [TorchMetric(name, metric) for name, metric in each.items()]
        elif isinstance(each, nn.Module) and hasattr(each, "higher_is_better"):
            found.append(TorchMetric(re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", type(each).__name__).lower(), each))
        else:
            found.append(each)
    return found


def check_without_step(metrics: Sequence[Metric], step: object) -> None:
    """Reject metrics beside a step, except the default one."""
    others = [each for each in metrics if type(each) is not Accuracy or each.ignore != IGNORED_LABEL]
    if step is not None and others:
        raise SettingError(
            f"metrics={others} would not be computed: a step returns its own values; return (loss, {{name: value}}) "
            "from it, or log the values in a LightningModule's validation_step"
        )


def is_higher_better(metric: str, higher: bool | None) -> bool:
    """Return `higher` if given; otherwise lower is better for names of losses and errors, higher for all others."""
    return not any(word in metric for word in ("loss", "error")) if higher is None else higher


def reached(values: Mapping[str, float], target: Mapping[str, float], metrics: Mapping[str, Metric]) -> bool:
    """Return whether all values of `target` are reached; NaN never is."""
    for name, wanted in target.items():
        metric = metrics.get(name)
        higher = is_higher_better(name, metric.higher_is_better if metric else None)
        value = values.get(name, float("nan"))
        if not (value >= wanted if higher else value <= wanted):
            return False
    return bool(target)


def mean_of(values: list[Tensor]) -> float:
    """Return the mean over per-learner tensors, ignoring the NaN of learners that sat out; NaN if all did."""
    return float(torch.cat([v.detach().float().reshape(-1) for v in values]).nanmean()) if values else float("nan")
