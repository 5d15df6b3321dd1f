"""Metrics of torchmetrics in the place of bow's."""

import copy
import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from bow.errors import SettingError, reason
from bow.training.metrics import Metric, is_higher_better


class TorchMetric(Metric):
    """A metric of torchmetrics, under a name."""

    def __init__(self, name: str, metric: Any) -> None:
        self.name = name
        self.higher_is_better = is_higher_better(name, metric.higher_is_better)
        self._metric = copy.deepcopy(metric)  # those of a collection share what they gather

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


def wrapped(metrics: Iterable[Any]) -> list[Any]:
    """Metrics, with those of torchmetrics wrapped and its collections taken apart."""
    found: list[Any] = []
    for each in metrics:
        if isinstance(each, nn.ModuleDict):
            found += [TorchMetric(name, metric) for name, metric in each.items()]
        elif isinstance(each, nn.Module) and hasattr(each, "higher_is_better"):
            found.append(TorchMetric(re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", type(each).__name__).lower(), each))
        else:
            found.append(each)
    return found
