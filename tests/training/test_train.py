from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bow
from bow.errors import ModelError
from tests.training.blueprints import Behind, Data, Train, assert_equal_models, linear


class Indices(Dataset[Tensor]):
    """Samples that say which they are."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return torch.tensor([float(index)])


class Watcher:
    """A step that writes down what every learner is given, and a callback that tells the rounds apart."""

    def __init__(self) -> None:
        self.rounds: list[list[tuple[int, list[int]]]] = [[]]

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.rounds[-1].append((id(model), [int(value) for value in batch.flatten()]))
        return model(batch * 0).mean()

    def on_round_end(self, run: Any) -> None:
        self.rounds.append([])

    @property
    def samples(self) -> list[int]:
        return [sample for tasks in self.rounds for _, batch in tasks for sample in batch]


def watch(train: Train, data: Any, **settings: Any) -> Watcher:
    watcher = Watcher()
    train(nn.Linear(1, 1), data, step=watcher, callbacks=[watcher], **settings)
    assert not watcher.rounds.pop()
    return watcher


def test_the_result_says_what_came_out(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model, data, validation=data, epochs=3)
    assert type(result.model) is nn.Linear
    assert not result.model.training
    assert all(p.is_leaf and p.requires_grad and p.device.type == "cpu" for p in result.model.parameters())
    assert [record["epoch"] for record in result.history] == [1, 2, 3]
    assert [record["samples"] for record in result.history] == [48, 96, 144]
    assert (result.learners, result.engine, result.time_to_target, result.num_restarts) == (2, "eager", None, 0)
    assert result.throughput > 0
    assert 0 < result.seconds < 60
    assert result.run_dir.name == "run"
    assert len({result, result}) == 1
    assert result.metrics == {name: result.history[-1][name] for name in ("loss", "accuracy")}
    assert result.metrics["accuracy"] > 0.8


@pytest.mark.parametrize("kind", ["tensors", "dataset"])
@pytest.mark.parametrize(
    ("samples", "batch_size", "learners", "epochs"),
    [(16, 4, 2, 1), (17, 4, 2, 3), (10, 3, 3, 4), (7, 1, 5, 2), (13, 13, 1, 2), (9, 4, 2, 5)],
)
def test_every_sample_is_seen_once_an_epoch_by_one_learner(
    train: Train, kind: str, samples: int, batch_size: int, learners: int, epochs: int
) -> None:
    data = torch.arange(samples, dtype=torch.float32)[:, None] if kind == "tensors" else Indices(samples)
    watcher = watch(train, data, batch_size=batch_size, learners=learners, epochs=epochs)
    for epoch in range(epochs):
        seen = watcher.samples[epoch * samples : (epoch + 1) * samples]
        assert sorted(seen) == list(range(samples)), f"epoch {epoch + 1}"
    assert len(watcher.samples) == epochs * samples
    learner_ids = [learner for learner, _ in watcher.rounds[0]]
    assert len(set(learner_ids)) == learners
    for tasks in watcher.rounds[:-1]:
        assert [learner for learner, _ in tasks] == learner_ids, "batches go to learners in a fixed order"
        assert all(len(batch) == batch_size for _, batch in tasks), "only the last round may be short"


@pytest.mark.parametrize(("samples", "learners", "epochs"), [(16, 2, 2), (15, 3, 3), (18, 4, 3)])
def test_every_sample_of_a_loader_is_seen_once_an_epoch(train: Train, samples: int, learners: int, epochs: int) -> None:
    loader = DataLoader(Indices(samples), batch_size=4, shuffle=True)
    watcher = watch(train, loader, learners=learners, epochs=epochs)
    for epoch in range(epochs):
        assert sorted(watcher.samples[epoch * samples : (epoch + 1) * samples]) == list(range(samples))
    assert len(watcher.samples) == epochs * samples
    assert all(len(tasks) == learners for tasks in watcher.rounds[:-1])


def test_the_order_depends_on_seed_and_epoch_only(train: Train, tmp_path: Any) -> None:
    def order(**settings: Any) -> list[int]:
        torch.rand(3)
        run_dir = tmp_path / f"run{next(numbers)}"
        return watch(train, Indices(24), batch_size=2, epochs=2, run_dir=run_dir, **settings).samples

    numbers: Iterator[int] = iter(range(10))
    one, again, three, other = order(learners=1), order(learners=1), order(learners=3), order(learners=1, seed=1)
    assert one == again == three
    assert one != other
    assert one[:24] != one[24:]


def test_steps_counts_rounds_and_overrules_epochs(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model, data, steps=9, epochs=50, validation=data)
    assert [(record["round"], record["epoch"]) for record in result.history] == [(6, 1), (9, 1.5)]
    assert result.history[-1]["samples"] == 9 * 2 * 4


def test_tensors_and_data_sets_of_the_same_samples_train_the_same_model(
    train: Train, model: nn.Module, data: Data, tmp_path: Any
) -> None:
    class Pairs(Dataset[Any]):
        def __len__(self) -> int:
            return len(data[0])

        def __getitem__(self, index: int) -> Any:
            return data[0][index], data[1][index]

    expected = train(model, data, epochs=2, run_dir=tmp_path / "tensors").model
    for name, same in {"TensorDataset": TensorDataset(*data), "Dataset": Pairs()}.items():
        trained = train(model, same, epochs=2, run_dir=tmp_path / name).model
        torch.testing.assert_close(trained.weight, expected.weight)


def test_a_loader_keeps_its_batch_size(train: Train, model: nn.Module, data: Data) -> None:
    loader = DataLoader(TensorDataset(*data), batch_size=6, shuffle=True)
    result = train(model, loader, batch_size=None, epochs=4, validation=DataLoader(TensorDataset(*data), batch_size=48))
    assert [record["round"] for record in result.history] == [4, 8, 12, 16]
    assert result.metrics["accuracy"] > 0.8


class Endless(IterableDataset[Any]):
    def __init__(self, data: Data) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from zip(*self.data, strict=True)


def test_iterable_data_are_trained_on_for_a_number_of_steps(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model, Endless(data), steps=20, validation=data)
    (record,) = result.history
    assert (record["round"], record["samples"]) == (20, 160)
    assert record["accuracy"] > 0.7


def test_a_step_takes_any_pytree_and_its_metrics_are_recorded(train: Train, model: nn.Module, data: Data) -> None:
    def step(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = model(batch["inputs"][0])
        losses = cross_entropy(outputs, batch["labels"], reduction="none")
        return (losses * batch["weights"]).mean(), {"mistakes": (outputs.argmax(1) != batch["labels"]).float().mean()}

    samples = {"inputs": (data[0],), "labels": data[1], "weights": torch.ones(48)}
    result = train(model, samples, step=step, validation=samples, epochs=5)
    assert set(result.metrics) == {"loss", "mistakes", "train_mistakes"}
    with torch.no_grad():
        mistakes = (result.model(data[0]).argmax(1) != data[1]).float().mean()
    assert result.metrics["mistakes"] == pytest.approx(float(mistakes))
    assert result.metrics["mistakes"] < 0.2


def mean_and_size(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    inputs, targets = batch
    outputs = model(inputs)
    return cross_entropy(outputs, targets), {
        "confidence": outputs.softmax(1).max(1).values.mean(),
        "train_first": outputs[0, 0],
    }


class Reading:
    """Writes down what each round's steps returned, and ends a training behind some round."""

    def __init__(self, last: int | None = None) -> None:
        self.values: list[list[float]] = []
        self.last = last

    def on_round_end(self, run: Any) -> None:
        self.values.append(run.replicas.last.metrics["confidence"].tolist())
        if run.round == self.last:
            run.stop()


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_values_of_a_step_are_recorded_as_means_over_the_samples_of_an_epoch(
    engine: Any, model: nn.Module, data: Data, tmp_path: Path
) -> None:
    loader = DataLoader(TensorDataset(*data), batch_size=9)  # of 48 samples, whose last batch has three
    given: dict[str, Any] = {"step": mean_and_size, "engine": engine, "learners": 2, "epochs": 2}
    whole, first = Reading(), Reading(last=2)

    def trained(name: str, reading: Reading, **run: Any) -> bow.Result:
        run = bow.Run(tmp_path / name, progress=False, checkpoint_every=2, **run)
        return bow.train(model, loader, run=run, callbacks=[reading], **given)

    result = trained("whole", whole)
    sizes = torch.tensor([[9.0, 9], [9, 9], [9, 3]])
    for epoch, rounds in enumerate((whole.values[:3], whole.values[3:])):
        expected = float((torch.tensor(rounds) * sizes).sum()) / 48
        assert result.history[epoch]["train_confidence"] == pytest.approx(expected)
        assert "train_first" in result.history[epoch]
    trained("parts", first)
    again = trained("parts", Reading(), resume="auto")
    for name in ("train_confidence", "train_first", "train_loss"):
        assert [each[name] for each in again.history] == [each[name] for each in result.history]


def test_a_model_may_be_given_as_a_function(train: Train, model: nn.Module, data: Data, tmp_path: Any) -> None:
    built = train(linear, data, run_dir=tmp_path / "built").model
    assert_equal_models(built, train(model, data).model)


def test_lazy_modules_get_their_shapes_from_the_data(train: Train, model: nn.Module, data: Data, tmp_path: Any) -> None:
    lazy = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))
    result = train(lazy, data, epochs=5, validation=data)
    assert result.model[0].weight.shape == (8, 5)
    assert result.metrics["accuracy"] > 0.7
    by_step = train(nn.LazyLinear(3), data, step=lambda m, b: cross_entropy(m(b[0]), b[1]), run_dir=tmp_path / "step")
    assert by_step.model.weight.shape == (3, 5)


def test_a_compiled_model_is_unwrapped(train: Train, model: nn.Module, data: Data, tmp_path: Any) -> None:
    result = train(torch.compile(model), data)
    assert type(result.model) is nn.Linear
    assert_equal_models(result.model, train(model, data, run_dir=tmp_path / "plain").model)


def test_a_wrapper_of_several_processes_is_refused(train: Train, model: nn.Module, data: Data, tmp_path: Any) -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    with pytest.raises(ModelError, match="wrapped in DistributedDataParallel; pass the plain module"):
        train(DistributedDataParallel(model), data)
    assert not (tmp_path / "run").exists()


class Counting(nn.Module):
    """Counts its forward passes, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.net(inputs)


def test_the_users_model_and_random_numbers_are_left_alone(train: Train, data: Data) -> None:
    model = Counting()
    model.net[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    result = train(model, data, validation=data, epochs=2)
    drawn = torch.rand(4)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert modes == [module.training for module in model.modules()]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not torch.equal(result.model.net[0].weight, model.net[0].weight)
    assert result.model.calls == 12, "one forward pass in each round"
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), drawn)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(inputs)))


def test_tied_weights_stay_tied(train: Train, data: Data) -> None:
    model = Tied()
    result = train(model, data, validation=data, epochs=2)
    assert result.model.first.weight is result.model.second.weight
    assert not torch.equal(result.model.first.weight, model.first.weight)
    with torch.no_grad():
        loss = cross_entropy(result.model(data[0]), data[1])
    assert result.metrics["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_frozen_parameters_stay_as_they_are(train: Train, data: Data) -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    result = train(model, data, epochs=3, optimizer=functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.1))
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not result.model[0].weight.requires_grad
    assert result.model[0].weight is not model[0].weight
    assert not torch.equal(result.model[2].weight, model[2].weight)


@pytest.mark.parametrize("policy", ["average", "first", "recalibrate"])
def test_batch_norm_statistics_follow_the_policy(train: Train, data: Data, policy: str) -> None:
    learners: list[Tensor] = []

    class Statistics:
        def on_round_end(self, run: Any) -> None:
            learners[:] = [run.replicas.learner(i)[0].running_mean.clone() for i in range(2)]

    model = nn.Sequential(nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3))
    result = train(model, (data[0] + 3.0, data[1]), epochs=2, buffers=policy, callbacks=[Statistics()], batch_size=8)
    assert not torch.equal(learners[0], learners[1])
    inputs = data[0] + 3.0
    expected = {"average": torch.stack(learners).mean(0), "first": learners[0], "recalibrate": inputs.mean(0)}[policy]
    torch.testing.assert_close(result.model[0].running_mean, expected)
    if policy == "recalibrate":  # six batches of eight
        assert result.model[0].num_batches_tracked == 6


def test_bfloat16_is_autocast(train: Train, model: nn.Module, data: Data) -> None:
    seen = set()

    def step(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0])
        seen.add(outputs.dtype)
        return cross_entropy(outputs.float(), batch[1])

    result = train(model, data, step=step, precision="bfloat16", validation=data)
    assert seen == {torch.bfloat16}, "in training and in evaluation"
    assert result.model.weight.dtype == torch.float32


def test_float64_models_train_in_float64(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model.double(), (data[0].double(), data[1]))
    assert result.model.weight.dtype == torch.float64


def test_dropout_is_reproducible_and_depends_on_the_seed(train: Train, data: Data, tmp_path: Any) -> None:
    def weights(seed: int, name: str) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))
        torch.manual_seed(ord(name))
        # one batch per round that holds all samples: the order of the samples does not matter
        return train(model, data, batch_size=48, learners=1, seed=seed, run_dir=tmp_path / name).model[1].weight

    assert torch.equal(weights(0, "a"), weights(0, "b"))
    assert not torch.allclose(weights(0, "c"), weights(1, "d"), atol=1e-4)


@pytest.mark.parametrize(("samples", "learners"), [(48, 1), (16 * 25 * 2, 2), (16 * 25 * 4, 4), (16 * 25 * 9, 4)])
def test_auto_learners_leave_25_rounds_an_epoch(
    train: Train, model: nn.Module, samples: int, learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.choice.available_cores", lambda: [0, 1, 2, 3])
    data = (torch.randn(samples, 5), torch.randint(0, 3, (samples,)))
    result = train(model, data, learners="auto", batch_size=16, callbacks=[Behind(lambda run: run.stop())])
    assert result.learners == learners


@pytest.mark.parametrize(
    ("steps", "built", "engine"), [(99, True, "eager"), (100, True, "graph"), (100, False, "eager")]
)
def test_auto_engine_depends_on_the_length_of_the_training_and_on_what_is_built(
    train: Train,
    model: nn.Module,
    data: Data,
    steps: int,
    built: bool,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bow.engines.choice.is_built", lambda: built)
    tuner = bow.Tuner(share=1e-6, cache=False)  # no time to measure anything, however slow this machine is
    result = train(model, data, engine="auto", steps=steps, tuner=tuner, callbacks=[Behind(lambda run: run.stop())])
    assert result.engine == engine


def test_a_model_given_as_a_function_starts_from_the_seed_and_leaves_the_callers_random_numbers(
    train: Train, data: Data, tmp_path: Path
) -> None:
    still = functools.partial(torch.optim.SGD, lr=0.0)

    def initial(seed: int, caller: int) -> Tensor:
        generator = torch.manual_seed(caller)
        before = generator.get_state()
        result = train(
            lambda: nn.Linear(5, 3), data, seed=seed, steps=1, optimizer=still, run_dir=tmp_path / f"{seed}-{caller}"
        )
        assert torch.equal(generator.get_state(), before)
        return result.model.weight

    assert torch.equal(initial(0, caller=1), initial(0, caller=2))
    assert not torch.equal(initial(0, caller=3), initial(1, caller=3))
