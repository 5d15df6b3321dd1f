from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import bow
from bow.data import batch_length
from bow.errors import DataError, SettingError
from bow.training.evaluation import Evaluator, recalibrate_central
from tests.grouped import of_replicas
from tests.training.blueprints import Data, Train, assert_equal_models


def evaluated(evaluate: Evaluator, trained: bow.Replicas) -> dict[str, float]:
    return evaluate(trained.central, trained.device, trained.loop.settings)


def replicas(model: nn.Module, **settings: Any) -> bow.Replicas:
    loss = None if "step" in settings else cross_entropy
    return bow.Replicas(model, loss, **of_replicas(learners=2, engine="eager", device="cpu", **settings))


@pytest.mark.parametrize("batch_size", [None, 1, 7, 48])
def test_values_are_means_over_samples_whatever_the_batch_size(
    model: nn.Module, data: Data, batch_size: int | None
) -> None:
    values = evaluated(Evaluator(data, cross_entropy, [bow.Accuracy()], batch_size), replicas(model))
    with torch.no_grad():
        outputs = model(data[0])
    assert values == {
        "loss": pytest.approx(float(cross_entropy(outputs, data[1])), rel=1e-5),
        "accuracy": pytest.approx(float((outputs.argmax(1) == data[1]).float().mean())),
    }


def test_a_step_is_averaged_over_samples(model: nn.Module, data: Data) -> None:
    def step(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return cross_entropy(model(batch[0]), batch[1]), {"mean": batch[0].mean()}

    values = evaluated(Evaluator(data, None, [], 20), replicas(model, step=step))
    assert values["mean"] == pytest.approx(float(data[0].mean()), abs=1e-6)
    with torch.no_grad():
        assert values["loss"] == pytest.approx(float(cross_entropy(model(data[0]), data[1])), rel=1e-5)


def test_a_value_of_some_batches_is_the_mean_over_their_samples(model: nn.Module, data: Data) -> None:
    first = data[0][:20].mean()

    def step(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        values = {"first": batch[0].mean()} if torch.equal(batch[0], data[0][:20]) else {"others": batch[0].mean()}
        return cross_entropy(model(batch[0]), batch[1]), values

    values = evaluated(Evaluator(data, None, [], 20), replicas(model, step=step))
    assert values["first"] == pytest.approx(float(first), abs=1e-6)
    assert values["others"] == pytest.approx(float(data[0][20:].mean()), abs=1e-6)


class InPlace(nn.Linear):
    """Prepares its inputs where they are, as in-place activations do."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.mul_(2))


@pytest.mark.parametrize("arrays", [False, True], ids=["tensors", "arrays"])
def test_a_model_that_works_in_place_leaves_the_data_alone(data: Data, arrays: bool, tmp_path: Any) -> None:
    given = tuple(each.numpy() for each in data) if arrays else data
    before = [each.clone() for each in data]
    torch.manual_seed(0)
    model = InPlace(5, 3)
    result = bow.train(
        model, given, cross_entropy, validation=given, epochs=3, learners=2, engine="eager", devices="cpu",
        batch_size=4, run=bow.Run(tmp_path / "run", progress=False),
    )  # fmt: skip
    with torch.no_grad():
        expected = float(cross_entropy(result.model(before[0].clone()), before[1]))
    assert all(map(torch.equal, data, before))
    assert result.history[-1]["loss"] == pytest.approx(expected, rel=1e-5)
    assert bow.evaluate(result.model, given, loss=cross_entropy)["loss"] == pytest.approx(expected, rel=1e-5)
    assert all(map(torch.equal, data, before))


def test_a_loader_keeps_its_batch_size(model: nn.Module, data: Data) -> None:
    sizes = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        sizes.append(len(batch[0]))
        return model(batch[0]).mean()

    evaluated(Evaluator(DataLoader(TensorDataset(*data), batch_size=20), None, [], None), replicas(model, step=step))
    assert sizes == [20, 20, 8]


def test_the_model_is_evaluated_in_evaluation_mode_and_without_gradients(data: Data) -> None:
    seen = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0])
        seen.append((model.training, outputs.requires_grad))
        return outputs.mean()

    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(5), nn.Linear(5, 3))
    trained = replicas(model, step=step)
    first = evaluated(Evaluator(data, None, [], None), trained)
    assert first == evaluated(Evaluator(data, None, [], None), trained)
    assert seen == [(False, False)] * 2
    assert trained.central[1].num_batches_tracked == 0


def test_metrics_are_reset_between_evaluations(model: nn.Module, data: Data) -> None:
    evaluator = Evaluator(data, cross_entropy, [bow.Accuracy()], None)
    perfect = nn.Linear(5, 3)
    with torch.no_grad():
        perfect.weight.copy_(torch.eye(3, 5))
        perfect.bias.zero_()
    worse = evaluated(evaluator, replicas(model))
    assert worse["accuracy"] < 1.0
    assert evaluated(evaluator, replicas(perfect))["accuracy"] == 1.0


def test_recalibration_measures_batch_norm_statistics_on_training_data(data: Data) -> None:
    parts: list[Tensor] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        parts.append(batch[0])
        return model(batch[0]).mean()

    trained = replicas(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), buffers="recalibrate", step=step)
    recalibrate_central(trained, data, 12, seed=0)
    norm = trained.central[0]
    assert [len(part) for part in parts] == [12] * 4
    torch.testing.assert_close(norm.running_mean, data[0].mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([part.var(0) for part in parts]).mean(0))
    assert not norm.training
    assert norm.momentum == 0.1


def sorted_data(kind: str) -> Any:
    inputs = torch.linspace(0, 20, 2000)[:, None].repeat(1, 5)
    samples = (inputs, (inputs[:, 0] > 10).long())
    return samples if kind == "tensors" else DataLoader(TensorDataset(*samples), batch_size=4, shuffle=True)


@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_recalibration_of_sorted_data_sees_all_parts_of_them(kind: str) -> None:
    trained = replicas(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), buffers="recalibrate")
    means = []
    for seed in (3, 3, 4):
        recalibrate_central(trained, sorted_data(kind), 4, seed)
        means.append(float(trained.central[0].running_mean[0]))
    assert means[0] == pytest.approx(10, abs=2)
    assert means[0] == means[1] != means[2]


@pytest.mark.parametrize("workers", [0, 1])
def test_recalibration_leaves_the_pass_of_a_loader_that_is_under_way_alone(workers: int) -> None:
    dataset = TensorDataset(torch.arange(200.0)[:, None].repeat(1, 5), torch.zeros(200, dtype=torch.long))

    def read(disturb: bool) -> list[float]:
        generator = torch.Generator().manual_seed(0)
        sampler = RandomSampler(dataset, replacement=True, generator=generator)  # draws while it goes
        loader = DataLoader(
            dataset, batch_size=10, sampler=sampler, num_workers=workers, persistent_workers=workers > 0
        )
        batches = iter(loader)
        values = [next(batches)[0][:, 0]]
        if disturb:
            trained = replicas(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), buffers="recalibrate")
            recalibrate_central(trained, loader, 10, seed=1)
            assert 50 < float(trained.central[0].running_mean[0]) < 150
        return torch.cat([*values, *(batch[0][:, 0] for batch in batches)]).tolist()

    assert read(disturb=True) == read(disturb=False)


class Epochs(TensorDataset):
    """Reads its samples by the epoch that it is told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return self.tensors[0][index] * 0 + self.epoch, self.tensors[1][index]


@pytest.mark.parametrize("settings", [{"buffers": "recalibrate"}, {"same": True}], ids=["recalibrated", "same data"])
def test_a_data_set_is_told_the_epoch_again_after_an_evaluation_has_read_it(
    train: Train, data: Data, settings: dict[str, Any]
) -> None:
    seen: list[float] = []

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))

        def forward(self, inputs: Tensor) -> Tensor:
            if self.layers[1].training:
                seen.append(float(inputs[0, 0]))
            outputs: Tensor = self.layers(inputs)
            return outputs

    epochs = Epochs(*data)
    loader = DataLoader(epochs, batch_size=12)
    validation = DataLoader(epochs, batch_size=12) if settings.pop("same", False) else data
    train(Look(), loader, epochs=2, batch_size=None, learners=1, validation=validation, evaluate_every=0.25, **settings)
    assert seen == [0.0] * 4 + [1.0] * 4


def test_recalibration_shares_a_sampler_that_cannot_be_copied(data: Data) -> None:
    class Locked(RandomSampler):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    loader = DataLoader(TensorDataset(*data), batch_size=12, sampler=Locked(data[0]))
    trained = replicas(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), buffers="recalibrate")
    recalibrate_central(trained, loader, 12, seed=1)
    torch.testing.assert_close(trained.central[0].running_mean, data[0].mean(0))


def test_recalibration_on_iterable_data_takes_some_batches() -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return ((torch.full((5,), float(number)), torch.tensor(0)) for number in itertools.count())

    trained = replicas(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), buffers="recalibrate")
    recalibrate_central(trained, Endless(), 4, seed=1)
    assert float(trained.central[0].running_mean[0]) == pytest.approx(99.5)


def test_a_metric_that_computes_no_number_is_an_error(model: nn.Module, data: Data) -> None:
    class Nothing(bow.Accuracy):
        def compute(self) -> Any:
            return None

    with pytest.raises(SettingError, match="the metric accuracy must compute a number, got None"):
        evaluated(Evaluator(data, cross_entropy, [Nothing()], None), replicas(model))


@pytest.mark.parametrize(
    ("batch", "length"),
    [((torch.zeros(3, 2), 1), 3), ({"a": torch.zeros(()), "b": torch.zeros(5)}, 5), (torch.zeros(()), 1)],
    ids=["pair", "dict", "scalar"],
)
def test_batches_count_by_the_first_dimension(batch: Any, length: int) -> None:
    assert batch_length(batch) == length


def test_validation_data_without_a_batch_are_refused(model: nn.Module) -> None:
    empty = DataLoader(TensorDataset(torch.zeros(3, 5)), batch_size=4, drop_last=True)
    with pytest.raises(DataError, match="gave no batch"):
        Evaluator(empty, cross_entropy, [], None).first_batch()


def test_a_value_that_a_step_leaves_out_is_averaged_over_the_samples_it_was_given_for(model: nn.Module) -> None:
    data = torch.randn(20, 5), torch.arange(20) % 3

    def step(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss = cross_entropy(model(batch[0]), batch[1])
        return loss, ({"size": torch.tensor(float(len(batch[1])))} if len(batch[1]) == 8 else {})

    assert evaluated(Evaluator(data, None, [], 8), replicas(model, step=step))["size"] == 8.0


class Noisy(nn.Module):
    """Draws random numbers in evaluation mode, too, as a variational autoencoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm, self.decode = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        encoded = self.encode(inputs)
        outputs: Tensor = self.decode(self.norm(encoded + torch.randn_like(encoded)))
        return outputs


def noisy() -> nn.Module:
    torch.manual_seed(0)
    return Noisy()


@pytest.mark.parametrize("buffers", ["average", "recalibrate"])
def test_random_numbers_of_evaluation_are_those_of_the_seed(data: Data, tmp_path: Path, buffers: Any) -> None:
    plateau = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, threshold=0.5)

    def start(number: int) -> bow.Result:
        model = noisy()
        torch.manual_seed(number)
        before = torch.get_rng_state()
        given = bow.Validation(data, buffers=buffers, batch_size=20)
        result = bow.train(
            model, data, cross_entropy, scheduler=plateau, epochs=3, learners=2, engine="eager", batch_size=4,
            validation=given, run=bow.Run(tmp_path / str(number), progress=False),
        )  # fmt: skip
        assert torch.equal(torch.get_rng_state(), before)
        return result

    first, second = start(1), start(2)
    assert [each["loss"] for each in first.history] == [each["loss"] for each in second.history]
    assert_equal_models(second.model, first.model)
    measured = bow.evaluate(first.model, data, loss=cross_entropy, batch_size=20)
    assert measured["loss"] == pytest.approx(first.history[-1]["loss"])
