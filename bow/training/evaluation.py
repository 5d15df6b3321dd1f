"""Evaluation of models: `bow.evaluate`, and the evaluations of a training."""

import contextlib
import copy
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from bow.data import Batch, batch_length, batch_of, evaluation_batches, is_in_memory, open_stream
from bow.data.opening import LoaderStream, PrivateRandom, is_iterable
from bow.devices import num_threads
from bow.engines import Engine, LearningConfig, Loss, Step, autocast, loss_of, outputs_of, own_loss
from bow.errors import BowError, DataError, ModelError, SettingError, reason
from bow.replicas import (
    buffer_state,
    extra_state,
    in_mode,
    load_buffers,
    load_extra_state,
    nan_buffers,
    recalibrate,
)
from bow.seeds import derive_seed
from bow.training.checks import check_objects, check_step, num_not_finite, remedy_of
from bow.training.context import RunContext
from bow.training.metrics import (
    DEFAULT_METRICS,
    Metric,
    as_metrics,
    check_names,
    check_without_step,
    is_higher_better,
    reached,
)
from bow.training.replicas import Replicas
from bow.training.run_records import RunRecords


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
            self.state = {**place, "tensors": kept, "extra": extra_state(model)}

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
                load_extra_state(last, self.state["extra"])
        return BestModel(last, **{name: self.state[name] for name in ("metric", "metrics", "round", "epoch")})

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
        self._average.copy_(self._weights if state is None else state["average"])  # type: ignore[arg-type]
        self._rounds = 1 if state is None else int(state["rounds"])


ROUNDING = 1e-9  # of the number of evaluations that are due
RECALIBRATION_BATCHES = 50  # training batches on which batch-norm statistics are recalibrated
EMPTY = "the validation data gave no batch, got an empty stream; give at least one sample, in every pass"

RECALIBRATION, EVALUATION = 1, 3  # derive the seeds of recalibration's batches, and of random numbers in evaluation


@contextlib.contextmanager
def own_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Draw random numbers by a seed, and leave the caller's generators as they are."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), PrivateRandom(seed).active():
        for each in devices:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        yield


class NotFinite(NamedTuple):
    """A NaN or infinite value of a validation batch."""

    text: str  # message for the user
    of_the_data: bool  # whether the batch itself is not finite, so that no model would help

    @classmethod
    def found(cls, name: str, value: float, index: int, batch: Any, model: nn.Module) -> "NotFinite":
        count = num_not_finite(batch)
        cause = f"{count} values of the batch are not finite" if count else "the batch itself is finite"
        if count:
            remedy = "correct the data"
        elif (buffer := next(nan_buffers(model), None)) is not None:
            remedy = f"buffer {buffer!r} of the model holds NaN, which may have been there before the training"
        else:
            remedy = "the model may be diverging"
        return cls(f"{name} is {value} in batch {index} of the validation data: {cause}; {remedy}", count > 0)


class Evaluator:
    """Computes loss and metrics on the validation data, weighting batches by their samples."""

    def __init__(self, validation: Any, loss: Loss | None, metrics: Sequence[Metric], batch_size: int | None) -> None:
        self._validation = validation
        self._loss = loss
        self._metrics = metrics
        self._batch_size = batch_size
        self.problem: NotFinite | None = None  # the first value of the last evaluation that was not finite
        evaluation_batches(validation, batch_size)  # finds bad data now and not after an epoch

    @property
    def is_in_memory(self) -> bool:
        return is_in_memory(self._validation)

    def copy(self) -> "Evaluator":
        """Return an evaluator with its own metrics, for another thread."""
        made = copy.copy(self)
        made._metrics = copy.deepcopy(self._metrics)
        return made

    def first_batch(self) -> Any:
        for batch in evaluation_batches(self._validation, self._batch_size):
            return batch
        raise DataError(EMPTY)

    @torch.no_grad()
    def __call__(self, model: nn.Module, device: torch.device, task: LearningConfig) -> dict[str, float]:
        """Return the loss and each metric by name, computed in the precision of the learning tasks."""
        sums, counts = dict[str, float](), dict[str, int]()  # a step need not return every value for every batch
        count = 0
        applying: list[Metric] | None = None
        self.problem = None
        for metric in self._metrics:
            metric.reset()
        for index, batch in enumerate(evaluation_batches(self._validation, self._batch_size)):
            batch = tree_map_only(Tensor, lambda t: t.to(device, non_blocking=True), batch)
            with autocast(device, task.engine.precision):
                if self._loss is None and task.step is not own_loss:
                    made = task.step(model, batch)
                    loss, metrics = made if isinstance(made, tuple) else (made, {})
                    check_names("a value of the step", metrics)
                    values = {"loss": loss, **metrics}
                else:
                    if self._loss is None and isinstance(batch, Mapping):
                        own = outputs_of(model, batch)
                        values = {"loss": loss_of(own)}
                        outputs, targets = _logits_and_labels(own, batch)
                    else:
                        inputs, targets = _pair(batch)
                        outputs = model(inputs)
                        values = {} if self._loss is None else {"loss": self._loss(outputs, targets)}
                    if applying is None:
                        applying = [m for m in self._metrics if m.applies(outputs, targets)]
                    for metric in applying:
                        metric.update(outputs, targets)
            size = batch_length(batch)
            count += size
            for name, value in values.items():
                number = float(value)
                sums[name] = sums.get(name, 0.0) + number * size
                counts[name] = counts.get(name, 0) + size
                if not math.isfinite(number) and self.problem is None:
                    self.problem = NotFinite.found(name, number, index, batch, model)
        if not count:  # such as a stream that is exhausted
            raise DataError(EMPTY)
        means = {name: total / max(counts[name], 1) for name, total in sums.items()}
        computed = {metric.name: _computed(metric) for metric in applying or []}
        for name, number in computed.items():
            if math.isnan(number) and self.problem is None:
                self.problem = NotFinite(
                    f"{name} is nan over the validation data; correct the metric or the data", False
                )
        return means | computed


def evaluate(
    model: nn.Module,
    data: Any,
    metrics: Sequence[Metric] = DEFAULT_METRICS,
    *,
    loss: Loss | None = None,
    step: Step | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
) -> dict[str, float]:
    """Compute loss and metrics of a model on data, as a training does after every epoch.

    Args:
        model: switched to evaluation mode meanwhile; batches are moved to its device.
        data: as for `bow.train`; read once, in order. Random numbers drawn meanwhile are the same in every call.
        metrics: metrics to compute; those that do not apply are skipped.
        loss: `loss(outputs, targets) -> scalar`, a mean over samples; without it, only metrics are computed, and the
            model's own loss if it computes one.
        step: instead of `loss`: the values that `step(model, batch)` returns are averaged.
        batch_size: samples per batch; None: 256, or the `DataLoader`'s own.
        precision: `"bfloat16"` for autocast; None is the model's own dtype.

    Returns:
        Values by name.

    Raises:
        BowError: an invalid argument; the message names the value and the remedy.

    Example:
        >>> inputs = torch.eye(3)
        >>> evaluate(nn.Identity(), (inputs, torch.tensor([0, 1, 0])))
        {'accuracy': 0.6666666666666666}
    """
    if not isinstance(model, nn.Module):
        raise SettingError(f"model must be a module, got {type(model).__name__}; give result.model")
    metrics = as_metrics(metrics)
    check_objects("metrics", metrics, Metric)
    check_names("a metric", [getattr(metric, "name", None) for metric in metrics])
    check_without_step(metrics, step)
    task = LearningConfig(check_step(loss, step), engine=Engine(precision=precision))
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    evaluation_batches(data, batch_size, setting="batch_size")
    evaluator = Evaluator(data, loss, metrics, batch_size)
    try:
        with in_mode(model, False), own_numbers(derive_seed(task.seed, EVALUATION), device):
            return evaluator(model, device, task)
    except BowError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model, its loss or a metric fails on the data ({type(error).__name__}: {reason(error)}); "
            f"{remedy_of(error, model)}"
        ) from error


class Evaluations:
    """The evaluations of a training, at the end of epochs and within them."""

    def __init__(self, context: RunContext, records: RunRecords) -> None:
        self._context = context
        self._position = context.position
        self._records = records
        self._last: dict[str, Any] = {"round": -1, "time_s": 0.0, "values": {}}
        self._shares_done = 0
        self._best = BestEvaluation(context.config.stop or (), context.config.validation.metrics)
        decay, replicas = context.config.validation.ema, context.replicas
        self.average: MovingAverage | None = None
        if decay is not None and isinstance(replicas, Replicas):
            self.average = MovingAverage(replicas, decay)

    @property
    def state(self) -> dict[str, Any]:
        """State for checkpoints: the last evaluation, the best one, and the moving average of weights."""
        average = None if self.average is None else self.average.state
        return {"evaluated": self._last, "best": self._best.state, "ema": average}

    def best(self, model: nn.Module) -> BestModel | None:
        return self._best.model(model, self._last["round"])

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Swap the moving average, if any, into the central model within the context."""
        return contextlib.nullcontext() if self.average is None else self.average.in_place()

    def load(self, state: Mapping[str, Any]) -> None:
        self._shares_done = self._shares()
        self._last, self._best.state = state["evaluated"], state["best"]
        if self.average is not None:
            self.average.load(state["ema"])
        if reached(self._last["values"], self._context.target, self._context.metrics):
            self._position.time_to_target = self._last["time_s"]

    @property
    def is_due(self) -> bool:
        return self._shares() > self._shares_done

    def rounds_left(self) -> int:
        """Return the minimum number of rounds until the next evaluation within the epoch, which is collective."""
        context, every = self._context, self._context.config.validation.every
        per_epoch, batch = context.stream.samples_per_epoch, context.stream.batch_size
        if every >= 1 or context.evaluate is None or per_epoch is None:
            return sys.maxsize
        if batch is None:
            return sys.maxsize if context.world.is_one else 1
        left = (self._shares() + 1 - ROUNDING) * every * per_epoch - self._position.samples
        return max(1, math.ceil(left / (batch * context.replicas.group.num_all)))

    def within_epoch(self) -> None:
        values = self.evaluate()
        self._records.log({"kind": "evaluation", "epoch": self._position.epochs, **self._records.place, **values})
        self.check_target(values)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the central model, or return the values already computed for this round."""
        if self._last["round"] == self._position.round:
            return dict(self._last["values"])
        self._context.replicas.settle()
        with num_threads(self._context.threads), self.averaged():
            values = self._evaluate_now()
            if isinstance(self._context.stream, LoaderStream):
                self._context.stream.go_on()
            if values:
                self._best.look(values, self._position.round, self._position.epochs, self._context.replicas.central)
        self._last = {"round": self._position.round, "time_s": self._position.elapsed_s, "values": values}
        self._shares_done = self._shares()
        return values

    def check_target(self, values: Mapping[str, float]) -> None:
        target, position = self._context.target, self._position
        missing = [name for name in target if name not in values]
        if missing:
            raise SettingError(
                f"target names {missing[0]!r}, which is not measured; choose from {', '.join(values) or 'nothing'}"
            )
        if position.time_to_target is None and reached(values, target, self._context.metrics):
            position.time_to_target = position.elapsed_s
            text = ", ".join(f"{name} {values[name]:.4g}" for name in target)
            self._records.event("target reached", f"target reached after {position.time_to_target:.1f} s: {text}")

    def _evaluate_now(self) -> dict[str, float]:
        context, config = self._context, self._context.config
        self._records.gather_events()
        if config.validation.buffers == "recalibrate":
            seed = derive_seed(config.seed, RECALIBRATION, self._position.round)
            recalibrate_central(cast(Replicas, context.replicas), config.data, context.stream.batch_size, seed)
        evaluate = context.evaluate
        if evaluate is None:
            return {}
        own: tuple[dict[str, float], NotFinite | None] = {}, None
        if context.world.leads:
            replicas = context.replicas
            with own_numbers(derive_seed(config.seed, EVALUATION), replicas.device):
                own = evaluate(replicas.central, replicas.device, replicas.loop.settings), evaluate.problem
        values, problem = context.world.broadcast(own)
        if problem is not None:
            if context.world.leads:
                self._records.warn_of("not finite", problem.text)
            if problem.of_the_data and any(math.isnan(values.get(name, 0.0)) for name in context.target):
                raise DataError(f"the target cannot be reached: {problem.text}")
        return dict(values)

    def _shares(self) -> int:
        """Return the number of evaluations within epochs due so far; 0 if they are at the end of epochs only."""
        per_epoch, every = self._context.stream.samples_per_epoch, self._context.config.validation.every
        if every >= 1 or per_epoch is None or self._context.evaluate is None:
            return 0
        return int(self._position.samples / (every * per_epoch) + ROUNDING)


def recalibrate_central(replicas: Replicas, data: Any, batch_size: int | None, seed: int) -> None:
    model = replicas.central

    def forwards() -> Iterator[None]:
        for batch in _some_batches(data, batch_size, seed):
            batch = tree_map_only(Tensor, lambda t: t.to(replicas.device), batch)
            with autocast(replicas.device, replicas.loop.settings.engine.precision):
                replicas.loop.settings.step(model, batch)
            yield

    with own_numbers(seed, replicas.device):
        recalibrate(model, replicas.group.learners[0].module, forwards())


def _some_batches(data: Any, batch_size: int | None, seed: int) -> Iterator[Batch]:
    size = {} if batch_size is None else {"batch_size": batch_size}
    source = _second_loader(data) if isinstance(data, DataLoader) else data
    stream = open_stream(source, **size, steps=RECALIBRATION_BATCHES if is_iterable(data) else None, seed=seed)
    deals = iter(lambda: stream.deal(1), None)
    first = 0
    for deal in itertools.islice(deals, RECALIBRATION_BATCHES):
        first = first or deal.num_samples
        if deal.num_samples > 1 or first == 1:  # batch norm may take no single sample, which a last batch may be
            yield batch_of(deal.batches, 0)


def _second_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Copy a loader with its samplers and generators, so that the training's current pass is not disturbed."""
    second = copy.copy(loader)
    shared = {id(loader.dataset): loader.dataset}
    vars(second)["_iterator"] = None  # persistent workers stay with the original
    for name in ("sampler", "batch_sampler", "generator"):
        with contextlib.suppress(Exception):  # samplers that cannot be copied are shared
            vars(second)[name] = copy.deepcopy(vars(loader)[name], shared)  # DataLoader.__setattr__ refuses new ones
    return second


def _computed(metric: Metric) -> float:
    value = metric.compute()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise SettingError(f"the metric {metric.name} must compute a number, got {value!r}") from None


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise DataError(
            f"data must give pairs (inputs, targets), or dictionaries, got {type(batch).__name__}; use step="
        )
    return batch[0], batch[1]


def _logits_and_labels(outputs: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return outputs and targets for metrics; None for labels of tokens, which language models shift by one."""
    labels = batch.get("labels")
    is_of_samples = isinstance(labels, Tensor) and labels.dim() == 1
    return (getattr(outputs, "logits", None), labels) if is_of_samples else (None, None)
