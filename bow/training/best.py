"""The central model as it was at its best evaluation, and the moving average of its weights."""

import contextlib
import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from bow.training.config import TrainConfig
from bow.training.metrics import is_higher_better
from bow.training.replicas import Replicas


@dataclass(frozen=True, eq=False)
class BestModel:
    """The central model as it was at the best of a training's evaluations.

    Attributes:
        model: a plain module in evaluation mode, on the CPU.
        metric: what evaluations were compared by.
        metrics: the values of the validation data then, by name.
        round: rounds until then.
        epoch: passes over the data until then.
    """

    model: nn.Module = field(repr=False)
    metric: str
    metrics: Mapping[str, float]
    round: int
    epoch: float


class BestEvaluation:
    """Keeps the best of the evaluations: by the metric of a rule of `stop`, the first metric there is, or the loss."""

    def __init__(self, config: TrainConfig) -> None:
        self._rule: Any = next((rule for rule in config.stop or () if hasattr(rule, "metric")), None)
        self._metrics = {metric.name: metric.higher_is_better for metric in config.validation.metrics}
        self.state: dict[str, Any] = {}

    def look(self, values: Mapping[str, float], round_index: int, epoch: float, model: nn.Module) -> None:
        """Keep this evaluation if it is better than all before."""
        metric = next((name for name in values if name != "loss"), "loss")
        if self._rule is not None and self._rule.metric in values:
            metric = self._rule.metric
        value, before = self._goodness(metric, values), self._goodness(metric, self.state.get("metrics", {}))
        if value > before or (before == -math.inf and not math.isnan(value)):
            tensors = itertools.chain(model.named_parameters(), model.named_buffers())
            kept = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors}
            place = {"round": round_index, "epoch": epoch, "metric": metric, "metrics": dict(values)}
            self.state = {**place, "tensors": kept}

    def model(self, last: nn.Module, last_round: int) -> BestModel | None:
        """What was kept, as a module like the one that the training has ended with."""
        if not self.state:
            return None
        if self.state["round"] != last_round:
            last = copy.deepcopy(last)
            with torch.no_grad():
                for name, tensor in itertools.chain(last.named_parameters(), last.named_buffers()):
                    tensor.copy_(self.state["tensors"][name])
        return BestModel(last, **{name: value for name, value in self.state.items() if name != "tensors"})

    def _goodness(self, metric: str, values: Mapping[str, float]) -> float:
        given = self._rule.higher_is_better if self._rule is not None and metric == self._rule.metric else None
        higher = is_higher_better(metric, self._metrics.get(metric) if given is None else given)
        return values.get(metric, -math.inf if higher else math.inf) * (1 if higher else -1)


class MovingAverage:
    """The exponential moving average of the central model's weights, which takes their place when they are looked at.

    It is that of `torch.optim.swa_utils.AveragedModel`; buffers, such as batch-norm statistics, are the latest.
    """

    def __init__(self, replicas: Replicas, decay: float) -> None:
        self._weights = replicas.z
        self._average = replicas.z.clone()
        self._move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._rounds = 0

    @torch.no_grad()
    def round_ended(self) -> None:
        """Move it towards the weights, with which it begins."""
        if self._rounds:
            self._move([self._average], [self._weights], self._rounds)
        else:
            self._average.copy_(self._weights)
        self._rounds += 1

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The central model has these weights meanwhile."""
        weights = self._weights.clone()
        self._weights.copy_(self._average)
        try:
            yield
        finally:
            self._weights.copy_(weights)

    @property
    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"average": self._average.cpu(), "rounds": self._rounds}

    def load(self, state: Mapping[str, Tensor | int] | None) -> None:
        """Go on; where a checkpoint has none, from the weights of now."""
        self._average.copy_(self._weights if state is None else state["average"])  # type: ignore[arg-type]
        self._rounds = 1 if state is None else int(state["rounds"])
