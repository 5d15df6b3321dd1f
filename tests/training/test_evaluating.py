"""`bow.evaluate` computes what a training's evaluation and a loop of one's own compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bow
from bow.errors import BowError, DataError, SettingError
from tests.training.blueprints import Data, Iterated, Train


def test_it_is_what_a_training_measures(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model, data, validation=data)
    assert bow.evaluate(result.model, data, loss=cross_entropy) == result.metrics
    loader = DataLoader(TensorDataset(*data), batch_size=7)
    assert bow.evaluate(result.model, loader, loss=cross_entropy) == pytest.approx(result.metrics, rel=1e-6)


def test_it_is_what_a_loop_computes_and_leaves_the_model_alone(data: Data) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)).train()
    with torch.no_grad():
        outputs = model[0](data[0])
    expected = float((outputs.argmax(1) == data[1]).float().mean())
    assert bow.evaluate(model, data) == {"accuracy": pytest.approx(expected)}
    assert model.training
    assert model[1].training

    def step(module: nn.Module, batch: Data) -> tuple[Tensor, dict[str, Tensor]]:
        made = module(batch[0])
        return cross_entropy(made, batch[1]), {"mean": made.mean()}

    values = bow.evaluate(model, data, step=step, batch_size=10)
    assert values == pytest.approx({"loss": cross_entropy(outputs, data[1]).item(), "mean": outputs.mean().item()})


def test_neither_random_numbers_nor_statistics_move(data: Data) -> None:
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
    state, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    bow.evaluate(model, DataLoader(TensorDataset(*data), batch_size=7, shuffle=True), loss=cross_entropy)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.training


def test_data_that_have_run_dry_are_refused(model: nn.Module, data: Data) -> None:
    once = Iterated(zip(*data, strict=True))
    assert set(bow.evaluate(model, once, loss=cross_entropy)) == {"loss", "accuracy"}
    with pytest.raises(DataError, match="gave no batch"):
        bow.evaluate(model, once, loss=cross_entropy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": nn.Linear}, "model must be a module, got type"),
        ({"metrics": "accuracy"}, "metrics must be a list of Metric"),
        ({"data": 3}, "data must be tensors"),
        ({"loss": cross_entropy, "step": cross_entropy}, "give either loss= or step="),
        ({"data": torch.ones(4, 5)}, "pairs"),
        ({"model": nn.Linear(4, 3)}, "the model, its loss or a metric fails on the data .*mat1"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    model: nn.Module, data: Data, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BowError, match=message):
        bow.evaluate(**{"model": model, "data": data, **changes})


def test_a_refused_batch_size_is_named_as_the_argument_is() -> None:
    model, data = nn.Linear(2, 2), (torch.zeros(64, 2), torch.zeros(64, dtype=torch.long))
    with pytest.raises(SettingError, match=r"^batch_size must be .* got 0"):
        bow.evaluate(model, data, batch_size=0)
    with pytest.raises(SettingError, match=r"^batch_size=3 contradicts the DataLoader.* leave batch_size out"):
        bow.evaluate(model, DataLoader(TensorDataset(*data), batch_size=2), batch_size=3)
    with pytest.raises(SettingError, match=r"^validation\.batch_size must be .* got 0"):
        bow.train(model, data, cross_entropy, validation=bow.Validation(data, batch_size=0))
