from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import bow
from bow.errors import BowError, DataError, LossError, ModelError, OptimizerError, RunDirectoryError, SettingError
from bow.observe.records import read_records
from bow.replicas import prepare_template
from tests.training.blueprints import Given, Iterated, Train

X = torch.randn(48, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(48) % 3
SCHEDULER = torch.optim.lr_scheduler


def with_metrics(metrics: Any) -> Callable[..., Any]:
    return lambda model, batch: (cross_entropy(model(batch[0]), batch[1]), metrics)


def named(name: Any) -> bow.Metric:
    metric = bow.Accuracy()
    metric.name = name
    return metric


class Frozen(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 3)
        self.requires_grad_(False)


def hooked(register: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 3))
    getattr(model[0].weight, register)(lambda gradient: None)
    return model


def holding(*numbers: float) -> nn.Module:
    model = nn.Linear(5, 3)
    model.weight.data[0, : len(numbers)] = torch.tensor(numbers)
    return model


NODES: list[Any] = []


def hooked_where_gradients_add_up() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 3))
    NODES.append(model[0].weight.view_as(model[0].weight).grad_fn.next_functions[0][0])
    NODES[-1].register_prehook(lambda gradients: (gradients[0] * 2,))
    return model


WRONG_SETTINGS: list[tuple[dict[str, Any], type[BowError], str]] = [
    ({"step": cross_entropy, "loss": cross_entropy}, SettingError, "give either loss= or step=, got both"),
    ({"loss": None}, SettingError, r"give loss= \(or step=\): the batches are tuples, and only dictionaries"),
    ({"callbacks": [bow.EarlyStopping()]}, SettingError, r"goes into stop=, got callbacks=\[EarlyStopping.*; move it"),
    ({"validation": 0.2}, SettingError, r"validation must be data, .*, got 0.2; split the data"),
    ({"data": list(zip(X, Y, strict=True))}, DataError, r"got a list of 48 tuples; stack the samples"),
    ({"data": [(x, int(y)) for x, y in zip(X, Y, strict=True)]}, DataError, r"got a list of 48 tuples; stack"),
    ({"loss": nn.CrossEntropyLoss}, SettingError, r"loss must be .* the class CrossEntropyLoss; write CrossEnt.*\(\)"),
    ({"loss": None, "step": nn.Module}, SettingError, "step must be a function, got the class Module"),
    ({"loss": "mse"}, SettingError, "loss must be a function, got str"),
    ({"dispatch": "any"}, SettingError, "dispatch must be one of fixed, first_come, got 'any'"),
    ({"capture": "all", "engine": "graph"}, SettingError, "capture must be one of auto, learner, round, got 'all'"),
    ({"capture": "round"}, SettingError, "capture=.round. is a setting of engine .graph., got engine 'eager'"),
    ({"offload": "disk"}, SettingError, "offload must be True or False, got 'disk'"),
    ({"engine": 3}, SettingError, "engine must be a name such as .graph., or a bow.Engine, got 3"),
    (
        {"schedule": 3, "engine": "graph"},
        SettingError,
        'schedule must be a bow.Schedule, a file of one, "auto" or None, got 3',
    ),
    ({"checkpoint_every": 0}, SettingError, "checkpoint_every must be .*at least 1, or .*None .*, got 0"),
    (
        {"target": {"accuracy": 2}, "validation": (X, Y)},
        SettingError,
        "accuracy can never be reached, got 2; the best .* 1",
    ),
    ({"on_interrupt": "stop"}, SettingError, 'on_interrupt must be "raise" or "return", got \'stop\''),
    ({"checkpoint_every": True}, SettingError, "checkpoint_every must be a whole number .*, got True"),
    (
        {"seed": 2**64},
        SettingError,
        r"seed must be a whole number from -2\*\*63 to 2\*\*64 - 1, got 18446744073709551616",
    ),
    ({"seed": 0.5}, SettingError, "seed must be a whole number .*, got 0.5"),
    ({"engine": "graf"}, SettingError, "engine must be one of auto, eager, fused, .*, got 'graf'"),
    ({"learners": 0}, SettingError, 'learners must be .*at least 1, or "auto", got 0'),
    ({"learners": "many"}, SettingError, "got 'many'"),
    ({"learners": 2.0}, SettingError, "must be a whole number .*got 2.0"),
    ({"learners": "4"}, SettingError, "must be a whole number .*got '4' of type str"),
    ({"steps": "10"}, SettingError, "steps must be a whole number .* of type str"),
    ({"epochs": math.inf}, SettingError, "epochs must be a whole number .*got inf"),
    ({"eval_batch_size": 10**20, "validation": (X, Y)}, SettingError, "validation.batch_size must be .* from 1 to 2"),
    ({"evaluate_every": 2}, SettingError, "validation.every must be above 0 and at most 1, got 2; an epoch always"),
    ({"evaluate_every": math.nan}, SettingError, "validation.every must be a finite number above 0"),
    ({"clip_norm": math.nan}, SettingError, "clip_norm must be a finite number above 0"),
    ({"clip_norm": "1"}, SettingError, "clip_norm must be a finite number above 0, or None .* of type str"),
    ({"bucket_mb": math.inf}, SettingError, "bucket_mb must be a finite number above 0"),
    ({"devices": 10**6}, SettingError, r"devices must be a whole number from 1 to \d+, .* use devices=\d+"),
    (
        {"learners": 10**6, "batch_size": 1, "steps": 1, "data": (X[:1].expand(10**7, 5), Y[:1].expand(10**7))},
        SettingError,
        r"learners=1000000 is more than the 4096 that a device can have; use learners=4096 or learners=.auto.",
    ),
    ({"batch_size": 10**9, "learners": "auto", "steps": 2}, DataError, "48 samples .* of 1 learner .* batch_size=10"),
    ({"batch_size": 10**9}, DataError, "48 samples and one round of 1 learner with batch_size=1000000000"),
    ({"devices": 1.5}, SettingError, "devices must be a whole number .*got 1.5"),
    ({"target": {"accuracy": math.nan}, "validation": (X, Y)}, SettingError, "accuracy must be a finite number"),
    ({"run_dir": 7}, SettingError, "run must be a path .*got 7"),
    ({"run_dir": ["a"]}, SettingError, "run must be a path"),
    ({"run_dir": ""}, SettingError, "run must be a path, got an empty one"),
    ({"run_dir": "x" * 300}, SettingError, "run must be a path of at most"),
    ({"run_dir": "a\0b"}, SettingError, "run must be a path without NUL"),
    ({"run_dir": os.fsdecode(b"a\xff")}, SettingError, "run must be a path in UTF-8"),
    ({"resume": True}, SettingError, "resume must be a path .*got True"),
    ({"resume": "x" * 300}, SettingError, "resume must be a path of at most"),
    ({"schedule": "a\0b", "engine": "graph"}, SettingError, "schedule must be a path without NUL"),
    ({"batch_size": -4}, SettingError, "batch_size must be a whole number of at least 1, got -4"),
    ({"epochs": 0}, SettingError, "epochs must be a whole number of at least 1, got 0"),
    ({"steps": 0}, SettingError, "steps must be a whole number of at least 1, got 0"),
    (
        {"batch_size": 16, "learners": 4},
        DataError,
        "48 samples and one round of 4 learners with batch_size=16 takes 64",
    ),
    ({"devices": 0}, SettingError, "devices must be .*at least 1, .*got 0"),
    ({"devices": "tpu"}, SettingError, 'device must be "auto", "cpu" or "cuda", got \'tpu\''),
    ({"sync": "sma"}, SettingError, r"sync must be a synchroniser such as bow.SMA\(\), got 'sma'"),
    ({"sync": bow.SMA(alpha=0.99), "learners": 4}, SettingError, "alpha=0.99 is unstable with 4 learners"),
    ({"precision": "float16"}, SettingError, 'precision must be "bfloat16" or None'),
    ({"clip_norm": -1.0}, SettingError, "clip_norm must be above 0"),
    ({"buffers": "mean"}, SettingError, "buffers must be one of"),
    ({"on_nan": "stop"}, SettingError, 'on_nan must be "restart", "continue" or "error"'),
    ({"optimizer": torch.optim.LBFGS}, OptimizerError, "LBFGS needs a closure"),
    ({"optimizer": functools.partial(torch.optim.SGD, lr=-1)}, OptimizerError, "Invalid learning rate: -1"),
    ({"optimizer": functools.partial(torch.optim.SGD, lr=math.nan)}, OptimizerError, "lr=nan .* not finite in float32"),
    (
        {"optimizer": functools.partial(torch.optim.SGD, lr=1e308)},
        OptimizerError,
        r"lr=1e.308 .* not finite",
    ),
    (
        {"optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=math.inf)},
        OptimizerError,
        "momentum=inf .* not finite",
    ),
    (
        {"optimizer": functools.partial(torch.optim.SGD, lr=torch.tensor(math.inf))},
        OptimizerError,
        "lr=.*inf.* not finite",
    ),
    ({"scheduler": StepLR}, SettingError, "scheduler must be a function that makes a scheduler .*step_size"),
    (
        {"scheduler": functools.partial(StepLR, step_size=0)},
        SettingError,
        "scheduler StepLR fails at its first step .ZeroDivisionError",
    ),
    (
        {"scheduler": functools.partial(SCHEDULER.ReduceLROnPlateau, mode="max")},
        SettingError,
        'ReduceLROnPlateau receives the loss, got mode="max"',
    ),
    ({"scheduler": 0.9}, SettingError, "scheduler must be a function .* got 0.9"),
    ({"scheduler": lambda optimizer: optimizer}, SettingError, "it returned SGD"),
    ({"metrics": bow.Accuracy()}, SettingError, "metrics must be a list of Metric objects"),
    ({"metrics": [bow.Accuracy]}, SettingError, "metrics must be a list of Metric objects"),
    ({"metrics": "accuracy"}, SettingError, "metrics must be a list of Metric objects, got 'accuracy'"),
    ({"metrics": [named("loss")]}, SettingError, "a metric is named 'loss'"),
    ({"metrics": [named("lr")]}, SettingError, "a metric is named 'lr'"),
    ({"metrics": [named(None)]}, SettingError, "a metric needs a name"),
    ({"metrics": [bow.Accuracy(), bow.Accuracy()]}, SettingError, "another one have the name 'accuracy'"),
    (
        {"step": with_metrics({"learners": torch.zeros(())}), "validation": (X, Y)},
        SettingError,
        "a value of the step is named 'learners'",
    ),
    ({"validation": (X / 0, Y)}, DataError, "first batch of validation has 240 values that are not finite"),
    ({"loggers": [print]}, SettingError, "loggers must be a list of Logger objects"),
    ({"target": {"accuracy": 0.9}}, SettingError, "needs validation data to be measured on; give validation="),
    ({"target": 0.9, "validation": (X, Y)}, SettingError, "target must be values by name .* got 0.9"),
    ({"target": {"f1": 0.9}, "validation": (X, Y)}, SettingError, "names 'f1', .* choose from loss, accuracy"),
    ({"target": {"accuracy": "high"}, "validation": (X, Y)}, SettingError, "must be a finite number, got 'high'"),
    ({"target": {"accuracy": 0.9}, "validation": (X, Y), "metrics": ()}, SettingError, "choose from loss$"),
    ({"validation": X}, DataError, r"loss= needs batches of validation that are pairs .* got Tensor"),
    ({"validation": (X, Y, Y)}, DataError, "batches of validation that are pairs .* got tuple of 3"),
    ({"validation": (X, Y[:5])}, DataError, r"equal first dimensions, got \[48, 5\]"),
    ({"validation": (X, Y + 1)}, DataError, "labels run from 1 to 3 and the model has 3 outputs"),
    (
        {"validation": (X[:, :4], Y)},
        ModelError,
        r"fails on the first batch of validation, of shapes \(48, 4\), \(48,\)",
    ),
    ({"validation": (X, Y), "eval_batch_size": 0}, SettingError, "validation.batch_size must be .*at least 1, got 0"),
    ({"step": with_metrics({"a": 0.5})}, LossError, "the step's 'a' must be a scalar tensor, got float"),
    ({"step": with_metrics({"a": torch.zeros(2)})}, LossError, r"'a' must be a scalar tensor, got one of shape \(2,\)"),
    ({"step": with_metrics(torch.zeros(()))}, LossError, r"\(loss, \{name: scalar\}\), got Tensor"),
    ({"step": lambda m, b: (m(b[0]).mean(), {}, 3)}, LossError, "the loss must be a scalar tensor, got tuple"),
    ({"step": lambda m, b: m(b[0])}, LossError, r"got one of shape \(4, 3\); take its mean or sum"),
    ({"step": lambda m, b: b[0].mean()}, LossError, "does not depend on the model's parameters"),
    ({"step": lambda m, b: cross_entropy(m(b[0]), b[1] + 9)}, DataError, "an index is out of range"),
    ({"loss": functools.partial(cross_entropy, reduction="none")}, LossError, r"got one of shape \(4,\)"),
]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("settings", "error", "message"), WRONG_SETTINGS, ids=["+".join(wrong[0]) for wrong in WRONG_SETTINGS]
)
def test_wrong_settings_are_refused_and_leave_nothing_behind(
    train: Train, model: nn.Module, tmp_path: Path, settings: dict[str, Any], error: type[BowError], message: str
) -> None:
    before = model.weight.clone()
    with pytest.raises(error, match=message) as caught:
        train(model, **{"data": (X, Y), **settings})
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(model.weight, before)
    assert model.training


@pytest.mark.parametrize(
    ("samples", "epochs", "is_refused"), [(41, 1, True), (41, 3, False), (13, 5, True), (42, 1, False)]
)
def test_a_last_batch_that_batch_norm_cannot_take_is_refused_before_the_first(
    train: Train, samples: int, epochs: int, is_refused: bool
) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = "with batch_size=8, the last batch of all epochs has one sample"
    refused = pytest.raises(DataError, match=expected) if is_refused else contextlib.nullcontext()
    with refused:
        train(model, (X[:samples], Y[:samples]), batch_size=8, learners=1, epochs=epochs)
    if is_refused:
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_part_of_one_sample_is_refused_like_a_batch(train: Train) -> None:
    model, engine = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), bow.Engine(accumulate=4)
    with pytest.raises(DataError, match="with accumulate=4 a part of the last batch of all epochs has one sample"):
        train(model, (X[:43], Y[:43]), batch_size=8, learners=1, epochs=1, engine=engine)


def test_statistics_are_recalibrated_without_a_last_batch_of_one_sample(train: Train) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    settings: dict[str, Any] = {"validation": (X, Y), "buffers": "recalibrate", "batch_size": 16, "epochs": 2}
    assert train(model, (X[:33], Y[:33]), learners=1, **settings).history


def test_statistics_are_recalibrated_from_single_images(train: Train) -> None:
    model = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(5, 3))
    settings: dict[str, Any] = {"validation": (X, Y), "buffers": "recalibrate", "batch_size": 1, "epochs": 1}
    norm = train(model, (X, Y), learners=1, **settings).model.get_submodule("1")
    torch.testing.assert_close(norm.get_buffer("running_mean"), X.mean().view(1), rtol=0, atol=0.05)


class Ready(nn.Module):
    """Initialises itself by the first batch."""

    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out, self.first = nn.BatchNorm1d(1), nn.Linear(5, 3), list[int]()

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and not self.first:
            self.first.append(len(inputs))
            Ready.seen.append(len(inputs))
        made: Tensor = self.out(self.norm(inputs.unsqueeze(1)).flatten(1))
        return made


def test_looking_at_the_last_batch_changes_nothing(train: Train) -> None:
    Ready.seen.clear()
    train(Ready(), (X[:41], Y[:41]), batch_size=8, learners=1, epochs=1, engine="eager")
    assert 8 in Ready.seen


def test_a_last_batch_of_one_image_is_trained_on(train: Train) -> None:
    model = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(5, 3))
    assert train(model, (X[:41], Y[:41]), batch_size=8, learners=1, epochs=1).history


class Lying(Dataset[Any]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return [(X[number], Y[number]) for number in range(8)][index]


WRONG_DATA: list[tuple[Any, type[BowError], str]] = [
    ((X, Y + 1), DataError, r"labels run from 1 to 3 and the model has 3 outputs \(0 to 2\)"),
    ((X, Y - 1), DataError, "labels run from -1 to 1"),
    ((X, Y[:40]), DataError, r"equal first dimensions, got \[48, 40\]"),
    ((X[:0], Y[:0]), DataError, "0 samples"),
    ((X * torch.nan, Y), DataError, "first batch of data has 20 values that are not finite"),
    ((X[:, :4], Y), ModelError, r"fails on the first batch of data, of shapes \(4, 4\), \(4,\)"),
    (
        (X.double(), Y),
        ModelError,
        r"fails on the first batch of data, .*; give the data as the model has it: \.float\(\)",
    ),
    ((X, Y.int()), ModelError, r"fails on the first batch of data, .*; give the labels as \.long\(\)"),
    ((X, X), ModelError, "fails on the first batch"),
    (X, DataError, "batches of data that are pairs .* got Tensor; use step="),
    ({"x": X, "y": Y}, DataError, "pairs .* got dict; use step="),
    (None, DataError, "data must be tensors .* got NoneType"),
    ([1, 2, 3], DataError, "data must be tensors .* got list of int"),
    (TensorDataset, DataError, "data must be tensors .* got type"),
    ((X.to("meta"), Y.to("meta")), DataError, "batch of data is on the meta device"),
    (TensorDataset(X.to("meta"), Y), DataError, "on the meta device|on one device"),
    (Lying(), DataError, "Lying says that it has 1000 samples, and raises IndexError"),
    (DataLoader(Lying(), batch_size=16, shuffle=True), DataError, "Lying says that it has 1000 samples"),
    (DataLoader(TensorDataset(X, Y), batch_size=100, drop_last=True), BowError, "sample"),
    (DataLoader(TensorDataset(X, Y + 7), batch_size=4), DataError, "labels run from"),
]


@pytest.mark.parametrize(("data", "error", "message"), WRONG_DATA, ids=range(len(WRONG_DATA)))
def test_wrong_data_are_refused_and_leave_nothing_behind(
    train: Train, model: nn.Module, tmp_path: Path, data: Any, error: type[BowError], message: str
) -> None:
    settings = {"batch_size": None} if isinstance(data, DataLoader) else {}
    with pytest.raises(error, match=message):
        train(model, data, **settings)
    assert list(tmp_path.iterdir()) == []


class InPercent(bow.Accuracy):
    name = "percent"

    def compute(self) -> Tensor | float:
        return 100 * super().compute()


class Trusting(SCHEDULER.LRScheduler):
    """Looks at the norms of the weights, as layer-wise schedules do."""

    def get_lr(self) -> list[float]:
        weights = [p.detach().norm() for group in self.optimizer.param_groups for p in group["params"]]
        if self.last_epoch == 0:
            return [0.1 for _ in self.optimizer.param_groups]
        return [0.1 * min(1.0, float(torch.stack(weights).mean())) for _ in self.optimizer.param_groups]


class Limited(torch.optim.SGD):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.param_groups[0]["max_norm"] = math.inf


@pytest.mark.parametrize(
    "settings",
    [
        {"validation": (X, Y), "metrics": [InPercent()], "target": {"percent": 95}},
        {"optimizer": functools.partial(Limited, lr=0.1)},
        *(
            {"optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), "scheduler": factory}
            for factory in (
                Trusting,
                functools.partial(SCHEDULER.OneCycleLR, max_lr=0.1, total_steps=9),
                lambda optimizer: SCHEDULER.SequentialLR(
                    optimizer, [SCHEDULER.LinearLR(optimizer), SCHEDULER.CosineAnnealingLR(optimizer, 3)], [1]
                ),
                functools.partial(SCHEDULER.LambdaLR, lr_lambda=lambda epoch: 0.9**epoch),
                SCHEDULER.ReduceLROnPlateau,
            )
        ),
    ],
    ids=["scale", "no limit", "norms", "one cycle", "sequence", "lambda", "plateau"],
)
def test_unusual_settings_that_make_sense_are_taken(train: Train, model: nn.Module, settings: dict[str, Any]) -> None:
    assert train(model, (X, Y), epochs=2, **settings).history


def test_one_value_of_the_validation_data_that_is_not_finite_is_told_of(train: Train, model: nn.Module) -> None:
    inputs = X.clone()
    inputs[0, 0] = math.nan
    with pytest.warns(UserWarning, match="in batch 0 of the validation data: 1 values of the batch are not finite"):
        result = train(model, (X, Y), validation=(inputs, Y))
    assert math.isnan(result.metrics["loss"])
    assert result.metrics["accuracy"] > 0


@pytest.mark.parametrize("name", ["model", "status", "summary", "why"])
def test_a_value_may_be_named_as_a_text_of_another_record(train: Train, model: nn.Module, name: str) -> None:
    result = train(model, (X, Y), step=with_metrics({name: torch.zeros(())}), validation=(X, Y))
    epochs = [record for record in read_records(result.run_dir / "metrics.jsonl") if record["kind"] == "epoch"]
    assert [record[name] for record in epochs] == [0]


def test_iterable_data_that_end_at_once_are_refused(train: Train, model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no batches|no batch"):
        train(model, Iterated([]), steps=3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Flatten(), "no trainable parameters"),
        (Frozen(), r"no trainable parameters \(0 with requires_grad=True\)"),
        ("lenet", "model must be an nn.Module or a function that builds one, got str"),
        (lambda: None, "the model function must return an nn.Module, got NoneType"),
        (nn.Linear, "a function of no arguments, got Linear, which needs in_features, out_features"),
        (nn.Linear(5, 3, device="meta"), "the model is on the meta device"),
        (torch.jit.ScriptModule(), "the model is scripted or traced"),
        (nn.Linear(5, 3).half(), "float16|fails on the first batch"),
        (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).double()), "dtypes float32, float64|fails on the first"),
        (hooked("register_hook"), r"parameter '0.weight' has a gradient hook .*; remove it"),
        (hooked("register_post_accumulate_grad_hook"), r"parameter '0.weight' has a gradient hook .*; remove it"),
        (hooked_where_gradients_add_up(), r"'0.weight' has a gradient hook \(of its AccumulateGrad node\)"),
        (
            nn.Sequential(torch.jit.script(nn.Linear(5, 3))),
            r"the model's '0' is scripted or traced, .*; pass the module",
        ),
        (holding(math.nan), r"parameter 'weight' has 1 elements that are not finite"),
        (holding(math.inf, -math.inf), r"parameter 'weight' has 2 elements that are not finite"),
    ],
    ids=[
        *("none", "frozen", "name", "function", "class", "meta", "scripted", "half", "mixed", "hook", "accumulated"),
        *("node", "scripted part", "nan", "infinite"),
    ],
)
def test_models_that_cannot_be_replicated_are_refused(train: Train, tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        train(model, (X, Y))
    assert list(tmp_path.iterdir()) == []


def test_weights_whose_sum_is_too_large_are_finite() -> None:
    model = holding(3e38, 3e38)
    assert prepare_template(model, seed=0) is model


def test_an_unwritable_run_directory_is_refused(train: Train, model: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"run directory .* cannot be written .*; choose a writable directory"):
        train(model, (X, Y), run_dir=tmp_path / "file" / "run")


def test_an_error_of_the_first_round_keeps_what_was_there(train: Train, model: nn.Module, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    with pytest.raises(LossError):
        train(model, (X, Y), step=lambda m, b: m(b[0]))
    assert [path.name for path in run.iterdir()] == ["notes.txt"]


def test_an_error_of_the_users_own_code_is_not_disguised(train: Train, model: nn.Module, tmp_path: Path) -> None:
    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train(model, (X, Y), step=step)
    assert list(tmp_path.iterdir()) == []


def test_labels_that_cross_entropy_ignores_are_in_range(train: Train, model: nn.Module) -> None:
    labels = Y.clone()
    labels[::5] = -100
    assert train(model, (X, labels)).history[0]["train_loss"] > 0


@pytest.mark.parametrize(
    ("loss", "ignored"),
    [
        (nn.CrossEntropyLoss(ignore_index=255), 255),
        (functools.partial(cross_entropy, ignore_index=-1), -1),
        (functools.partial(nn.functional.nll_loss, ignore_index=7), 7),
        (nn.NLLLoss(ignore_index=9), 9),
    ],
    ids=["module", "partial", "nll_loss", "NLLLoss"],
)
def test_labels_that_the_loss_is_told_to_ignore_are_in_range_and_others_are_not(
    train: Train, model: nn.Module, loss: Any, ignored: int, tmp_path: Path
) -> None:
    labels = torch.where(torch.arange(48) % 5 == 0, ignored, Y)
    assert train(model, (X, labels), loss).history
    labels[3] = -100
    with pytest.raises(DataError, match="labels run from -100 to"):
        train(model, (X, labels), loss, run_dir=tmp_path / "other")


def test_numbers_of_numpy_are_taken(train: Train, model: nn.Module) -> None:
    settings = {"learners": np.int64(2), "batch_size": np.int32(4), "steps": np.int64(2), "clip_norm": np.float32(1)}
    result = train(model, (X, Y), **settings)
    assert (result.learners, type(result.learners)) == (2, int)


def test_the_home_directory_of_a_path_is_found(
    train: Train, model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert train(model, (X, Y), steps=1, run_dir="~/first").run_dir == tmp_path / "home" / "first"


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1, np.int64(3)])
def test_seeds_of_64_bits_are_taken(train: Train, seed: Any) -> None:
    assert train(lambda: nn.Linear(5, 3), (X, Y), seed=seed).history


def test_labels_are_not_checked_where_the_loss_is_not_known_to_take_classes(train: Train, model: nn.Module) -> None:
    result = train(model, (X, Y + 7), lambda outputs, targets: (outputs.mean(1) - targets).pow(2).mean())
    assert result.history


def test_a_model_that_writes_to_its_parameters_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=0.1), nn.Flatten(), nn.Linear(8, 3))
    data = torch.randint(10, (64, 2)), torch.randint(3, (64,))
    with pytest.raises(ModelError, match=r"'0\.weight' in place"):
        bow.train(model, data, nn.functional.cross_entropy, run=bow.Run(tmp_path / "run", progress=False))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_replicas_of_a_model_that_writes_to_its_parameters_are_refused(engine: Any) -> None:
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=0.1), nn.Linear(4, 3))
    with pytest.raises(ModelError, match=r"'0\.weight' in place"):
        bow.Replicas(model, cross_entropy, learners=2, engine=engine, device="cpu")


def test_an_embedding_that_is_not_trained_may_have_a_largest_norm() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=0.1).requires_grad_(False), nn.Linear(4, 3))
    replicas = bow.Replicas(model, cross_entropy, learners=2, engine="eager", device="cpu")
    batch = torch.randint(10, (4,)), torch.randint(3, (4,))
    assert replicas.round([batch, batch]).isfinite().all()


def test_other_modules_may_have_an_attribute_of_that_name() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Identity())
    model[1].max_norm = 1.0
    replicas = bow.Replicas(model, cross_entropy, learners=2, engine="eager", device="cpu")
    assert replicas.round([(X[:4], Y[:4])] * 2).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "total", "needed"),
    [
        ({"epochs": 2, "per_round": True}, 11, 12),
        ({"epochs": 3}, 2, 3),
        ({"steps": 7}, 1, 2),
        ({"steps": 7, "per_round": True}, 6, 7),
    ],
    ids=str,
)
def test_a_scheduler_with_too_few_steps_is_refused_and_one_with_enough_is_taken(
    train: Train, model: nn.Module, tmp_path: Path, settings: dict[str, Any], total: int, needed: int
) -> None:
    def scheduler(total_steps: int) -> Any:
        return functools.partial(SCHEDULER.OneCycleLR, max_lr=0.1, total_steps=total_steps)

    unit = "round" if "per_round" in settings else "epoch"
    fixed: dict[str, Any] = {"learners": 2, "batch_size": 4, **settings}
    with pytest.raises(SettingError, match=f"total_steps={total}, .* {needed} times, after every {unit}"):
        train(model, (X, Y), scheduler=scheduler(total), **fixed)
    assert not (tmp_path / "run").exists()
    assert train(model, (X, Y), scheduler=scheduler(needed), **fixed).history


@pytest.mark.parametrize(
    ("settings", "longest", "needed"),
    [
        ({"epochs": 4}, 2, 4),
        ({"steps": 19}, 2, 4),  # six rounds are an epoch
        ({"epochs": 2, "per_round": True}, 10, 12),
    ],
    ids=str,
)
def test_a_cosine_that_rises_again_is_told_of(
    train: Train, model: nn.Module, settings: dict[str, Any], longest: int, needed: int
) -> None:
    def scheduler(most: int) -> Any:
        return functools.partial(SCHEDULER.CosineAnnealingLR, T_max=most)

    unit = "round" if "per_round" in settings else "epoch"
    fixed: dict[str, Any] = {"learners": 2, "batch_size": 4, **settings}
    with pytest.warns(
        UserWarning, match=f"T_max={longest}, .* {needed} times, after every {unit}.*; use T_max={needed}"
    ):
        risen = train(model, (X, Y), scheduler=scheduler(longest), run_dir=None, **fixed)
    assert "per_round" in settings or risen.history[-1]["lr"] > risen.history[-2]["lr"]
    train(model, (X, Y), scheduler=scheduler(needed), run_dir=None, **fixed)
    assert train(model, (X, Y), scheduler=scheduler(needed - 1), run_dir=None, **fixed).history[-1]["lr"] < 0.01


def test_tensors_that_are_made_without_values_are_refused(model: nn.Module) -> None:
    torch.set_default_device("meta")
    try:
        with pytest.raises(SettingError, match=r"default device, meta, .*set_default_device"):
            bow.Replicas(model, cross_entropy, learners=2, engine="eager", device="cpu")
        with pytest.raises(SettingError, match=r"default device, meta, .*set_default_device"):
            bow.train(model, (X, Y), cross_entropy)
    finally:
        torch.set_default_device(None)


def test_values_that_would_have_one_name_in_the_records_are_refused(train: Train, model: nn.Module) -> None:
    step = with_metrics({name: torch.zeros(()) for name in ("x", "train_x")})
    with pytest.raises(SettingError, match="recorded as 'train_x', but another value is named 'x'; rename one"):
        train(model, (X, Y), step=step, validation=(X, Y))


@pytest.mark.parametrize("metric", [InPercent(), bow.Accuracy(ignore=0)], ids=["own", "changed"])
def test_metrics_beside_a_step_are_refused_except_the_default(
    train: Train, model: nn.Module, metric: bow.Metric
) -> None:
    step, validation = with_metrics({}), bow.Validation((X, Y), metrics=[metric])
    message = r"metrics=\[.*\] would not be computed: a step returns its own values; return "
    with pytest.raises(SettingError, match=message):
        train(model, (X, Y), step=step, validation=validation)
    with pytest.raises(SettingError, match=message):
        bow.sweep(model, (X, Y), step=step, variants=bow.grid(seed=range(2)), validation=validation)
    with pytest.raises(SettingError, match=message):
        bow.evaluate(model, (X, Y), [metric], step=step)
    assert bow.evaluate(model, (X, Y), [bow.Accuracy()], step=step).keys() == {"loss"}


def test_a_value_in_training_is_not_recorded_as_that_of_the_validation_data(train: Train, model: nn.Module) -> None:
    step = with_metrics({"train_x": torch.zeros(())})
    with pytest.raises(SettingError, match="would both be recorded as 'train_x'; name it without train_"):
        train(model, (X, Y), step=step, validation=(X, Y))
    train(model, (X, Y), step=step, run_dir=None)


def test_a_metric_that_is_never_a_number_is_told_of(train: Train, model: nn.Module) -> None:
    validation = bow.Validation((X, Y), metrics=[Given("q", itertools.repeat(math.nan))], target={"q": 0.1})
    with pytest.warns(UserWarning, match="q is nan over the validation data; correct the metric or the data"):
        result = train(model, (X, Y), validation=validation)
    events = [each for each in read_records(result.run_dir / "metrics.jsonl") if each["kind"] == "event"]
    assert [each["event"] for each in events] == ["not finite"]


def test_buffers_that_are_no_numbers_are_named(train: Train) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    model[1].running_mean.fill_(math.nan)
    with pytest.warns(UserWarning, match="buffer '1.running_mean' of the model holds NaN, which may have been there"):
        train(model, (X, Y), validation=(X, Y))


class Steps(nn.Linear):
    """Counts its passes in Python; what it keeps from the first one only, and tensors, are no matter."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__(5, 3)
        self.draw, self.first, self.lowest = draw, 0.0, math.nan

    def forward(self, inputs: Tensor) -> Tensor:
        self.first, self.last = self.first or 1.0, inputs
        return super().forward(inputs) + self.draw()


class Counting(Steps):
    def forward(self, inputs: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Steps(lambda: 0.0), None),
        (Counting(lambda: 0.0), "changes attribute 'calls' of the model in Python.* keep it in a buffer"),
        (nn.Sequential(Counting(lambda: 0.0)), "changes attribute 'calls' of module '0' in Python"),
        (Steps(random.random), "draws from Python's random, which neither the seed nor checkpoints cover"),
        (Steps(lambda: np.random.random()), "draws from NumPy's random"),
    ],
    ids=["nothing", "attribute", "module", "random", "numpy"],
)
def test_what_a_step_changes_that_is_not_saved_is_told_once(train: Train, model: nn.Module, told: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, (X, Y), epochs=2, validation=(X, Y))
    assert len(caught) == (told is not None)
    assert told is None or re.search(told, str(caught[0].message))


def test_a_loader_that_gives_each_process_a_share_is_refused_with_several(train: Train, model: nn.Module) -> None:
    sampler = DistributedSampler(TensorDataset(X, Y), num_replicas=2, rank=0)
    loader = DataLoader(TensorDataset(X, Y), batch_size=2, sampler=sampler)
    assert train(model, loader, batch_size=None).history
    with pytest.raises(DataError, match="data has a DistributedSampler with num_replicas=2, and bow deals"):
        train(model, loader, batch_size=None, devices=2)
    with pytest.raises(DataError, match="validation data has a DistributedSampler"):
        train(model, (X, Y), validation=loader, devices=2)
    swept = functools.partial(bow.sweep, model, variants=bow.grid(seed=[0, 1]), devices=2)
    with pytest.raises(DataError, match="DataLoader of data has a DistributedSampler"):
        swept(loader, cross_entropy)
    with pytest.raises(DataError, match="validation data has a DistributedSampler"):
        swept((X, Y), cross_entropy, validation=loader)


def test_parameters_that_are_tied_by_their_memory_are_refused(train: Train) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3))
    model[1].weight.data = model[0].weight.data
    with pytest.raises(ModelError, match=r"'0\.weight' and '1\.weight' share memory .*; assign one parameter to both"):
        train(model, (X, Y))
    model[1].weight = model[0].weight
    train(model, (X, Y))


def test_parameters_of_one_memory_that_do_not_come_apart_are_accepted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    for layer, part in zip(model, torch.randn(4, 12).chunk(3, dim=1), strict=True):
        layer.weight = nn.Parameter(part)  # columns that interleave
    model[0].bias.data = model[1].bias.data
    with pytest.raises(ModelError, match="share memory"):
        prepare_template(model, 0)
    model[0].bias.requires_grad_(False)
    with pytest.raises(ModelError, match="share memory"):
        prepare_template(model, 0)
    model[1].bias.requires_grad_(False)
    prepare_template(model, 0)
    lstm = nn.LSTM(5, 4)
    lstm.flatten_parameters()
    prepare_template(lstm, 0)


def test_memory_is_shared_whatever_lies_between_and_whether_it_has_gaps() -> None:
    model, data = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)), torch.randn(100)
    model[0].weight = nn.Parameter(data, requires_grad=False)
    model[1].weight = nn.Parameter(data[10:20], requires_grad=False)
    model[2].weight = nn.Parameter(data[50:70])
    with pytest.raises(ModelError, match=r"'0\.weight' and '2\.weight' share memory"):
        prepare_template(model, 0)
    columns = torch.randn(4, 12)[:, :4]
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for layer in model:
        layer.weight = nn.Parameter(columns)
    with pytest.raises(ModelError, match="share memory"):
        prepare_template(model, 0)
