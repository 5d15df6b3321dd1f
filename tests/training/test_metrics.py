from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.training.metrics import mean_of, reached
from tests.training.blueprints import Train


@pytest.mark.parametrize("classes_last", [False, True])
def test_accuracy_of_sequences(classes_last: bool) -> None:
    targets = torch.tensor([[0, 1, 2, 3], [3, 3, 3, 3]])
    outputs = nn.functional.one_hot(torch.tensor([[0, 1, 2, 0], [3, 0, 0, 0]]), 5).float()
    accuracy = bow.Accuracy()
    accuracy.update(outputs if classes_last else outputs.transpose(1, 2), targets)
    assert accuracy.compute() == 4 / 8


def test_accuracy_gathers_over_batches_and_forgets_on_reset() -> None:
    accuracy = bow.Accuracy()
    accuracy.update(torch.eye(2), torch.tensor([0, 1]))
    accuracy.update(torch.eye(2), torch.tensor([1, 1]))
    assert accuracy.compute() == 0.75
    accuracy.reset()
    accuracy.update(torch.eye(2), torch.tensor([1, 0]))
    assert accuracy.compute() == 0.0


def test_accuracy_does_not_count_targets_that_cross_entropy_ignores() -> None:
    accuracy = bow.Accuracy()
    accuracy.update(torch.eye(3), torch.tensor([0, -100, 1]))
    assert accuracy.compute() == 0.5


@pytest.mark.parametrize("ignore", [255, -1, 0])
def test_accuracy_does_not_count_targets_that_it_is_told_to_ignore(ignore: int) -> None:
    accuracy = bow.Accuracy(ignore=ignore)
    accuracy.update(torch.eye(3)[[0, 1, 2]], torch.tensor([ignore, 1, 1]))
    assert accuracy.compute() == 0.5
    assert repr(accuracy) == f"Accuracy(ignore={ignore})"


def test_accuracy_takes_classes_to_be_dimension_1_where_the_last_fits_too() -> None:
    targets = torch.tensor([[0, 1, 2], [2, 2, 2]])
    accuracy = bow.Accuracy()
    accuracy.update(nn.functional.one_hot(targets, 3).transpose(1, 2), targets)
    assert accuracy.compute() == 1.0


def test_accuracy_of_a_single_sample_without_a_batch() -> None:
    accuracy = bow.Accuracy()
    accuracy.update(torch.tensor([0.1, 0.9]), torch.tensor(1))
    assert accuracy.compute() == 1.0


@pytest.mark.parametrize(
    ("outputs", "targets", "applies"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), True),
        (torch.zeros(4, 3), torch.zeros(4, 3), False),
        (torch.zeros(4, 3), torch.zeros(4), False),
        ({"logits": torch.zeros(4, 3)}, torch.zeros(4, dtype=torch.int64), False),
    ],
    ids=["classes", "regression", "floats", "dict"],
)
def test_accuracy_applies_to_class_indices(outputs: Any, targets: Tensor, applies: bool) -> None:
    assert bow.Accuracy().applies(outputs, targets) == applies


class Error(bow.Metric):
    """The largest error, of which less is better."""

    name = "error"
    higher_is_better = False

    def reset(self) -> None:
        self.largest = 0.0

    def applies(self, outputs: Any, targets: Any) -> bool:
        return bool(outputs.shape == targets.shape)

    def update(self, outputs: Any, targets: Any) -> None:
        self.largest = max(self.largest, float((outputs - targets).abs().max()))

    def compute(self) -> float:
        return self.largest


@pytest.mark.parametrize(
    ("values", "target", "expected"),
    [
        ({"accuracy": 0.9}, {"accuracy": 0.9}, True),
        ({"accuracy": 0.89}, {"accuracy": 0.9}, False),
        ({"loss": 0.2}, {"loss": 0.3}, True),
        ({"loss": 0.4}, {"loss": 0.3}, False),
        ({"error": 0.2}, {"error": 0.3}, True),
        ({"error": 0.4}, {"error": 0.3}, False),
        ({"word_loss": 0.4}, {"word_loss": 0.3}, False),
        ({"word_error": 0.4}, {"word_error": 0.3}, False),
        ({"word_error": 0.2}, {"word_error": 0.3}, True),
        ({"accuracy": 0.95, "loss": 0.4}, {"accuracy": 0.9, "loss": 0.3}, False),
        ({"accuracy": float("nan")}, {"accuracy": 0.9}, False),
        ({"loss": float("nan")}, {"loss": 0.9}, False),
        ({}, {"accuracy": 0.9}, False),
        ({"accuracy": 0.9}, {}, False),
    ],
)
def test_a_target_is_reached_from_the_worse_side(
    values: dict[str, float], target: dict[str, float], expected: bool
) -> None:
    assert reached(values, target, {"accuracy": bow.Accuracy(), "error": Error()}) == expected


def test_a_metric_of_the_users_own_is_recorded_and_may_be_a_target(train: Train) -> None:
    inputs = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    data = (inputs, inputs @ torch.tensor([[1.0], [-2.0]]))
    result = train(
        nn.Linear(2, 1), data, nn.functional.mse_loss, validation=data, metrics=[Error(), bow.Accuracy()],
        target={"error": 0.05}, epochs=50, optimizer=functools.partial(torch.optim.SGD, lr=0.05),
    )  # fmt: skip
    assert set(result.metrics) == {"loss", "error"}, "accuracy does not apply to a regression"
    assert result.time_to_target is not None
    with torch.no_grad():
        assert result.metrics["error"] == pytest.approx(float((result.model(data[0]) - data[1]).abs().max()))


def test_the_mean_loss_leaves_out_learners_that_sat_out() -> None:
    assert mean_of([torch.tensor([1.0, 2.0]), torch.tensor([6.0, torch.nan])]) == 3.0
    assert str(mean_of([])) == "nan"


@pytest.mark.parametrize("shape", [(4, 1), (4, 1, 3, 3), (4, 5, 1)])
def test_accuracy_does_not_apply_to_a_single_output(shape: tuple[int, ...]) -> None:
    outputs = torch.zeros(shape)
    assert not bow.Accuracy().applies(outputs, outputs.squeeze().long()), "its largest output is always the first"
