"""The central model at its best evaluation, and its exponential moving average over rounds."""

import contextlib
import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from bow.replicas import buffer_state, load_buffers
from bow.training.metrics import Metric, is_higher_better
from bow.training.replicas import Replicas


@dataclass(frozen=True, eq=False)
class BestModel:
    """The central model as of a training's best evaluation.

    Attributes:
        model: a plain module in evaluation mode, on the CPU.
        metric: name of the value by which evaluations were compared.
        metrics: validation values at that evaluation, by name.
        round: rounds completed by then.
        epoch: passes over the data completed by then.
    """

    model: nn.Module = field(repr=False)
    metric: str
    metrics: Mapping[str, float]
    round: int
    epoch: float


class BestEvaluation:
    """Keeps the best evaluation, by the metric of a `stop` rule, else the first metric, else the loss."""

    def __init__(self, rules: Iterable[Any], metrics: Iterable[Metric], state: dict[str, Any] | None = None) -> None:
        self._directions: dict[str, bool | None] = {}  # metric -> whether higher is better, by priority
        for rule in rules:
            if hasattr(rule, "higher_is_better"):
                self._directions.setdefault(rule.metric, rule.higher_is_better)
        for metric in metrics:
            self._directions.setdefault(metric.name, metric.higher_is_better)
        self.state = state or {}

    def look(self, values: Mapping[str, float], round_index: int, epoch: float, model: nn.Module) -> None:
        metric = next((name for name in self._directions if name in values), "loss")
        value, before = self._goodness(metric, values), self._goodness(metric, self.state.get("metrics", {}))
        if value > before or (before == -math.inf and not math.isnan(value)):
            weights = {name: each.detach().to("cpu", copy=True) for name, each in model.named_parameters()}
            kept = weights | {name: each.cpu() for name, each in buffer_state(model).items()}
            place = {"round": round_index, "epoch": epoch, "metric": metric, "metrics": dict(values)}
            self.state = {**place, "tensors": kept}

    def model(self, last: nn.Module, last_round: int) -> BestModel | None:
        """Return the best model: `last` itself, or a copy of it with the kept tensors."""
        if not self.state:
            return None
        if self.state["round"] != last_round:
            last = copy.deepcopy(last)
            with torch.no_grad():
                for name, parameter in last.named_parameters():
                    parameter.copy_(self.state["tensors"][name])
                load_buffers(last, self.state["tensors"])
        return BestModel(last, **{name: value for name, value in self.state.items() if name != "tensors"})

    def _goodness(self, metric: str, values: Mapping[str, float]) -> float:
        higher = is_higher_better(metric, self._directions.get(metric))
        return values.get(metric, -math.inf if higher else math.inf) * (1 if higher else -1)


class MovingAverage:
    """Exponential moving average of the central model's weights; `in_place` swaps it in for evaluation and export."""

    def __init__(self, replicas: Replicas, decay: float) -> None:
        self._weights = replicas.z
        # As torch.optim.swa_utils.AveragedModel, in float32 at least: in bfloat16 it would not move.
        self._average = replicas.z.to(torch.promote_types(replicas.z.dtype, torch.float32), copy=True)
        self._move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._rounds = 0

    @torch.no_grad()
    def round_ended(self) -> None:
        if self._rounds:
            self._move([self._average], [self._weights.to(self._average.dtype)], self._rounds)
        else:
            self._average.copy_(self._weights)
        self._rounds += 1

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the average into the central model within the context."""
        weights = self._weights.clone()
        self._weights.copy_(self._average)
        try:
            yield
        finally:
            self._weights.copy_(weights)

    @property
    def state(self) -> dict[str, Any]:
        return {"average": self._average.to("cpu", copy=True), "rounds": self._rounds}

    def load(self, state: Mapping[str, Tensor | int] | None) -> None:
        """Restore from a checkpoint's state; None: restart from the current weights."""
        self._average.copy_(self._weights if state is None else state["average"])  # type: ignore[arg-type]
        self._rounds = 1 if state is None else int(state["rounds"])
