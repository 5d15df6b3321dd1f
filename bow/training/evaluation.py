"""Evaluating the central model: one pass over the validation data."""

import contextlib
import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, IterableDataset

from bow.data import Batch, evaluation_batches, open_stream
from bow.engines import Loss, autocast
from bow.errors import DataError, SettingError
from bow.replicas import recalibrate
from bow.training.checks import num_not_finite
from bow.training.learners import Learners
from bow.training.metrics import Metric, check_names

RECALIBRATION_BATCHES = 50
"""Batches of training data on which batch-norm statistics are measured anew."""


class NotFinite(NamedTuple):
    """A value of a batch of the validation data that is NaN or infinite.

    Attributes:
        text: the sentence about it.
        of_the_data: whether the batch itself has such values, so that a better model would not help.
    """

    text: str
    of_the_data: bool

    @classmethod
    def found(cls, name: str, value: float, index: int, batch: Any) -> "NotFinite":
        """Look at the batch, the `index`-th, that gave this value."""
        count = num_not_finite(batch)
        cause = f"{count} values of the batch are not finite" if count else "the batch itself is finite"
        remedy = "correct the data" if count else "the model may be diverging"
        return cls(f"{name} is {value} in batch {index} of the validation data: {cause}; {remedy}", count > 0)


class Evaluator:
    """Computes loss and metrics of the central model on the validation data.

    With `loss=`, the metrics that apply to the outputs are computed and the loss is the mean over samples. With
    `step=`, loss and metrics are what the step returns, averaged over samples. The loss of a batch is taken to be a
    mean over its samples: each batch counts by its size, so of a sum, or of a mean over something else such as tokens
    that are not ignored, the value depends on how the data are cut into batches.

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
        self.problem: NotFinite | None = None
        """The first value of the last evaluation that was not finite."""
        evaluation_batches(validation, batch_size)  # bad data are to be found now and not after an epoch

    def first_batch(self) -> Any:
        """The first batch of the validation data."""
        for batch in evaluation_batches(self._validation, self._batch_size):
            return batch
        raise DataError("the validation data gave no batch, got an empty stream; give at least one sample")

    @torch.no_grad()
    def __call__(self, replicas: Learners) -> dict[str, float]:
        """Values by name: `loss` and each metric."""
        model = replicas.central
        sums: dict[str, float] = {}
        count = 0
        applying: list[Metric] | None = None
        self.problem = None
        for metric in self._metrics:
            metric.reset()
        for index, batch in enumerate(evaluation_batches(self._validation, self._batch_size)):
            batch = tree_map_only(Tensor, lambda t: t.to(replicas.device, non_blocking=True), batch)
            with autocast(replicas.device, replicas.loop.settings.precision):
                if self._loss is None:
                    values = _step_values(replicas.loop.settings.step(model, batch))
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
                number = float(value)
                sums[name] = sums.get(name, 0.0) + number * size
                if not math.isfinite(number) and self.problem is None:
                    self.problem = NotFinite.found(name, number, index, batch)
        means = {name: total / max(count, 1) for name, total in sums.items()}
        return means | {metric.name: _computed(metric) for metric in applying or []}


def batch_length(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor."""
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()), 1)


def recalibrate_central(replicas: Learners, data: Any, batch_size: int | None, seed: int) -> None:
    """Measure the central model's batch-norm statistics on some batches of training data, drawn at random.

    A `DataLoader` is iterated with its own sampler, which decides whether it shuffles. What is iterated is a second
    loader over the same dataset with copies of sampler and generators, so that a pass of the training that is under
    way is not disturbed. Two things are shared all the same: a sampler that cannot be copied, and a dataset, which,
    if it has a `set_epoch`, is told another epoch until the next pass.
    """
    model = replicas.central

    def forwards() -> Iterator[None]:
        for batch in _some_batches(data, batch_size, seed):
            batch = tree_map_only(Tensor, lambda t: t.to(replicas.device), batch)
            with autocast(replicas.device, replicas.loop.settings.precision):
                replicas.loop.settings.step(model, batch)
            yield

    recalibrate(model, forwards())


def _some_batches(data: Any, batch_size: int | None, seed: int) -> Iterator[Batch]:
    """Batches from one shuffled pass over the data, at most `RECALIBRATION_BATCHES`."""
    size = {} if batch_size is None else {"batch_size": batch_size}
    endless = isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset)
    source = _second_loader(data) if isinstance(data, DataLoader) else data
    stream = open_stream(source, **size, steps=RECALIBRATION_BATCHES if endless else None, seed=seed)
    deals = iter(lambda: stream.deal(1), None)
    for deal in itertools.islice(deals, RECALIBRATION_BATCHES):
        yield tree_map_only(Tensor, lambda t: t[0], deal.batches) if deal.stacked else deal.batches[0]


def _second_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    second = copy.copy(loader)
    shared = {id(loader.dataset): loader.dataset}
    vars(second)["_iterator"] = None  # persistent workers stay with the first
    for name in ("sampler", "batch_sampler", "generator"):
        with contextlib.suppress(Exception):  # whatever a sampler raises that cannot be copied
            vars(second)[name] = copy.deepcopy(vars(loader)[name], shared)  # by vars, since a loader refuses new ones
    return second


def _computed(metric: Metric) -> float:
    value = metric.compute()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SettingError(f"the metric {metric.name} must compute a number, got {value!r}") from None


def _step_values(result: Tensor | tuple[Tensor, dict[str, Tensor]]) -> dict[str, Tensor]:
    loss, metrics = result if isinstance(result, tuple) else (result, {})
    check_names("a value of the step", metrics)
    return {"loss": loss, **metrics}
