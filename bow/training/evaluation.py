"""Evaluating the central model: one pass over the validation data."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.data import evaluation_batches
from bow.engine import Loss, autocast
from bow.errors import DataError
from bow.replica import recalibrate
from bow.training.metrics import Metric
from bow.training.replicas import Replicas

RECALIBRATION_BATCHES = 50
"""Batches of training data on which batch-norm statistics are measured anew."""


class Evaluator:
    """Computes loss and metrics of the central model on the validation data.

    With `loss=`, the metrics that apply to the outputs are computed and the loss is the mean over samples. With
    `step=`, loss and metrics are what the step returns, averaged over samples.

    Args:
        validation: like the training data.
        loss: None where the training has a `step`.
        metrics: computed from outputs and targets.
        batch_size: of the evaluation; None is 256, or the loader's own.
    """

    def __init__(self, validation: Any, loss: Loss | None, metrics: Sequence[Metric], batch_size: int | None) -> None:
        self._validation = validation
        self._loss = loss
        self._metrics = metrics
        self._batch_size = batch_size
        evaluation_batches(validation, batch_size)  # bad data are to be found now and not after an epoch

    def first_batch(self) -> Any:
        """The first batch of the validation data.

        Raises:
            DataError: there is none.
        """
        for batch in evaluation_batches(self._validation, self._batch_size):
            return batch
        raise DataError("the validation data gave no batch, got an empty stream; give at least one sample")

    @torch.no_grad()
    def __call__(self, replicas: Replicas) -> dict[str, float]:
        """Values by name: `loss` and each metric."""
        model = replicas.central
        sums: dict[str, float] = {}
        count = 0
        applying: list[Metric] | None = None
        for metric in self._metrics:
            metric.reset()
        for batch in evaluation_batches(self._validation, self._batch_size):
            batch = tree_map_only(Tensor, lambda t: t.to(replicas.device, non_blocking=True), batch)
            with autocast(replicas.device, replicas.precision):
                if self._loss is None:
                    values = _step_values(replicas.step(model, batch))
                else:
                    inputs, targets = batch
                    outputs = model(inputs)
                    values = {"loss": self._loss(outputs, targets)}
                    if applying is None:
                        applying = [m for m in self._metrics if m.applies(outputs, targets)]
                    for metric in applying:
                        metric.update(outputs, targets)
            size = batch_length(batch)
            count += size
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + float(value) * size
        means = {name: total / max(count, 1) for name, total in sums.items()}
        return means | {metric.name: metric.compute() for metric in applying or []}


def batch_length(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor."""
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()), 1)


def recalibrate_central(replicas: Replicas, data: Any, batch_size: int | None) -> None:
    """Measure the central model's batch-norm statistics on some batches of training data."""
    model = replicas.central

    def forwards() -> Any:
        for _, batch in zip(range(RECALIBRATION_BATCHES), evaluation_batches(data, batch_size), strict=False):
            batch = tree_map_only(Tensor, lambda t: t.to(replicas.device), batch)
            with autocast(replicas.device, replicas.precision):
                replicas.step(model, batch)
            yield

    recalibrate(model, forwards())


def _step_values(result: Tensor | tuple[Tensor, dict[str, Tensor]]) -> dict[str, Tensor]:
    loss, metrics = result if isinstance(result, tuple) else (result, {})
    return {"loss": loss, **metrics}
