"""Metrics of torchmetrics are computed as it computes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import bow
from benchmarks.models import let_torchvision_be_imported
from bow.errors import SettingError

let_torchvision_be_imported()  # which torchmetrics imports where it is there
torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
DATA = INPUTS, torch.arange(40) % 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def test_they_are_those_of_torchmetrics_after_every_epoch(tmp_path: Path) -> None:
    of_classes = torchmetrics.classification.MulticlassF1Score(3, average="macro")
    validation = bow.Validation(DATA, metrics=[bow.Accuracy(), of_classes], batch_size=7)
    result = bow.train(
        model, DATA, nn.functional.cross_entropy, epochs=2, learners=1, engine="eager", validation=validation,
        run=bow.Run(tmp_path / "run", progress=False), stop=bow.EarlyStopping("multiclass_f1_score"),
    )  # fmt: skip
    with torch.no_grad():
        expected = of_classes(result.model(INPUTS), DATA[1])
    assert result.metrics["multiclass_f1_score"] == pytest.approx(float(expected))
    assert {"loss", "accuracy", "multiclass_f1_score"} <= result.history[0].keys()
    assert result.best.metric == "multiclass_f1_score"


def test_a_collection_is_its_metrics_by_their_names() -> None:
    made = {"top": torchmetrics.classification.MulticlassAccuracy(3, average="micro")}
    collection = torchmetrics.MetricCollection({**made, "area": torchmetrics.classification.MulticlassAUROC(3)})
    trained = model()
    values = bow.evaluate(trained, DATA, [bow.Accuracy(), collection], batch_size=6)
    assert values["top"] == pytest.approx(values["accuracy"])
    assert set(values) == {"accuracy", "top", "area"}
    assert bow.evaluate(trained, DATA, [collection]) == pytest.approx({name: values[name] for name in ("top", "area")})


def test_lower_is_better_where_torchmetrics_says_so() -> None:
    validation = bow.Validation(DATA, metrics=[torchmetrics.MeanSquaredError()], target={"mean_squared_error": 0.1})
    assert [(each.name, each.higher_is_better) for each in validation.metrics] == [("mean_squared_error", False)]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([torchmetrics.classification.MulticlassAccuracy(5)], "multiclass_accuracy of torchmetrics does not take"),
        ([torchmetrics.classification.MulticlassAccuracy(3, average=None)], "must compute a number, got tensor"),
        (torchmetrics.MeanSquaredError(), "metrics must be a list of Metric objects"),
        ([nn.Linear(2, 2)], "metrics must be a list of Metric objects"),
    ],
    ids=["classes", "vector", "alone", "module"],
)
def test_what_gives_no_number_is_refused(metrics: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        bow.evaluate(model(), DATA, metrics)  # type: ignore[arg-type]
