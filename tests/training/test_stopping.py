"""`stop=`, the best model and the moving average, beside the loop that one writes without them."""

from __future__ import annotations

import copy
import errno
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import bow
from bow.errors import SettingError
from bow.observe.records import read_records
from bow.training import result as saving
from tests.training.blueprints import Behind, Data, Given, PowerCut, StopAfter, Train, assert_equal_models, dealt

OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.5, momentum=0.9)


def distance(*values: float) -> bow.Metric:
    """Of which less is better."""
    return Given("distance", values, higher_is_better=False)


class Ends:
    metric = "of my own"

    def why_over(self, training: Any) -> str | None:
        return "enough" if len(training.history) == 2 else None


def held_out() -> Data:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(20, 5, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def noisy(data: Data) -> Data:
    """Labels that nothing can be learned from: what is held out becomes worse."""
    return data[0], data[1][torch.randperm(len(data[1]), generator=torch.Generator().manual_seed(0))]


def test_patience_ends_a_training_where_a_loop_of_ones_own_would(train: Train, model: nn.Module, data: Data) -> None:
    model.bias.data[0] = 3.0  # type: ignore[union-attr, operator]
    rule, settings = bow.EarlyStopping(patience=2), {"validation": held_out(), "optimizer": OPTIMIZER, "epochs": 30}
    whole = train(model, noisy(data), run_dir=None, **settings).history
    losses = [record["loss"] for record in whole]
    expected = next(n for n in range(1, 31) if n - 1 - losses.index(min(losses[:n])) >= 2)
    result = train(model, noisy(data), stop=rule, **settings)
    assert result.stopped == "patience"
    (event,) = [record for record in read_records(result.run_dir / "metrics.jsonl") if record.get("event") == "stopped"]
    assert event["message"].startswith(f"patience: the training ends after {expected} epochs, the best evaluation was ")
    assert [record["loss"] for record in result.history] == losses[:expected]
    assert 2 < expected < 30


def test_the_best_model_is_that_of_its_evaluation(train: Train, model: nn.Module, data: Data) -> None:
    settings = {"validation": held_out(), "optimizer": OPTIMIZER, "stop": bow.EarlyStopping(patience=3), "epochs": 40}
    result = train(model, noisy(data), **settings)
    losses = [record["loss"] for record in result.history]
    at = losses.index(min(losses))
    assert (result.best.metric, result.best.epoch) == ("loss", at + 1)
    assert result.best.metrics["loss"] == min(losses)
    alone = train(model, noisy(data), run_dir=None, **{**settings, "epochs": at + 1, "stop": None})
    assert_equal_models(result.best.model, alone.model)
    again = copy.deepcopy(model)
    load_model(again, result.run_dir / "best.safetensors")
    assert_equal_models(again, alone.model)
    by_accuracy = [record["accuracy"] for record in result.history[: at + 1]]
    assert (alone.best.metric, alone.best.epoch) == ("accuracy", by_accuracy.index(max(by_accuracy)) + 1)


class Growing(nn.Linear):
    """A buffer with a number for each learning task."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen = torch.cat([self.seen, inputs.new_ones(1)])
        return super().forward(inputs)


def test_the_best_model_has_buffers_as_they_were(train: Train, data: Data) -> None:
    result = train(Growing(), data, validation=held_out(), metrics=[distance(2, 1, 3)], epochs=3)
    assert result.best.epoch == 2
    assert len(result.best.model.seen) == result.best.round < len(result.model.seen)  # type: ignore[arg-type]


def test_what_has_the_best_model_stays_until_it_is_written(
    train: Train, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, full = saving.save_whole, [True]

    def save(module: nn.Module, path: Path, *more: Any) -> Path:
        if path.name == "best.safetensors" and full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return before(module, path, *more)

    monkeypatch.setattr(saving, "save_whole", save)
    monkeypatch.setattr("bow.training.checkpoint.LEAST_S", 0.0)
    monkeypatch.setattr("bow.training.checkpoint.SHARE", 1e9)
    settings = {"validation": held_out(), "stop": bow.EarlyStopping(patience=3), "epochs": 40, "optimizer": OPTIMIZER}
    with pytest.warns(UserWarning, match="the best model cannot be written"):
        made = train(model, noisy(data), checkpoint_every="auto", **settings)
    assert list((made.run_dir / "checkpoints").iterdir())
    full[0] = False
    again = train(model, noisy(data), checkpoint_every="auto", resume="auto", **settings)
    assert_equal_models(again.best.model, made.best.model)
    assert (made.run_dir / "best.safetensors").exists()
    assert not (made.run_dir / "checkpoints").exists()


def test_the_last_model_can_be_the_best_and_without_validation_there_is_none(
    train: Train, model: nn.Module, data: Data
) -> None:
    result = train(model, data, validation=held_out(), stop=bow.EarlyStopping())
    assert result.best.model is result.model
    assert not (result.run_dir / "best.safetensors").exists()
    assert train(model, data, run_dir=None).best is None


@pytest.mark.parametrize(
    "stop", [Ends(), [bow.EarlyStopping(), Ends()], OmegaConf.create([Ends()], flags={"allow_objects": True})]
)
def test_a_rule_of_the_users_own_ends_a_training(train: Train, model: nn.Module, data: Data, stop: Any) -> None:
    result = train(model, data, stop=stop, epochs=5)
    assert (result.stopped, len(result.history)) == ("enough", 2)


@pytest.mark.parametrize(("stop", "got"), [("soon", "'soon'"), (bow.EarlyStopping, "class")])
def test_what_is_no_rule_is_refused(train: Train, model: nn.Module, data: Data, stop: Any, got: str) -> None:
    with pytest.raises(SettingError, match=rf"stop must be bow.EarlyStopping or an object .*got .*{got}"):
        train(model, data, stop=stop)


def test_patience_and_the_best_model_look_the_way_that_a_metric_says(
    train: Train, model: nn.Module, data: Data
) -> None:
    settings = {"validation": held_out(), "epochs": 5, "stop": bow.EarlyStopping("distance", patience=2)}
    falling = train(model, data, metrics=[distance(5, 4, 3, 2, 1)], **settings)
    assert (falling.stopped, len(falling.history)) == (None, 5)
    assert falling.best.epoch == 5
    rising = train(model, data, metrics=[distance(1, 2, 3, 4, 5)], run_dir=None, **settings)
    assert (rising.stopped, len(rising.history)) == ("patience", 3)
    assert (rising.best.metric, rising.best.epoch) == ("distance", 1)
    (end,) = [record for record in read_records(rising.run_dir / "metrics.jsonl") if record["kind"] == "end"]
    assert end["best_round"] == rising.best.round == rising.history[0]["round"]


def test_what_a_step_returns_says_not_which_way_it_is_better(train: Train, model: nn.Module, data: Data) -> None:
    def step(model: nn.Module, batch: Data) -> tuple[Tensor, dict[str, Tensor]]:
        loss = cross_entropy(model(batch[0]), batch[1])
        return loss, {"perplexity": loss.exp()}

    settings = {"validation": data, "step": step, "epochs": 3}
    best = train(model, data, **settings).best
    assert (best.metric, best.epoch) == ("loss", 3)
    rule = bow.EarlyStopping("perplexity", higher_is_better=False)
    best = train(model, data, run_dir=None, stop=rule, **settings).best
    assert (best.metric, best.epoch) == ("perplexity", 3)


@pytest.mark.parametrize(
    ("metric", "validation", "has"),
    [("acuracy", True, "loss, train_loss, accuracy"), ("accuracy", False, "loss, train_loss")],
)
def test_a_rule_that_looks_at_nothing_is_refused_before_the_training(
    train: Train, model: nn.Module, data: Data, tmp_path: Path, metric: str, validation: bool, has: str
) -> None:
    with pytest.raises(SettingError, match=rf"stop monitors '{metric}', which is not recorded; choose from {has}$"):
        train(model, data, validation=held_out() if validation else None, stop=bow.EarlyStopping(metric))
    assert not (tmp_path / "run").exists()
    assert train(model, data, stop=bow.EarlyStopping("train_loss")).stopped is None


@pytest.mark.parametrize("rule", [bow.EarlyStopping, bow.Halving])
def test_rules_say_what_they_look_at_and_which_way(rule: Any) -> None:
    with pytest.raises(SettingError, match="metric must be 'loss' or the name of a metric, got 3"):
        rule(3)
    with pytest.raises(SettingError, match="higher_is_better must be True, False or None, got 'lower'"):
        rule("accuracy", higher_is_better="lower")


@pytest.mark.parametrize("lost", [float("inf"), float("nan")])
def test_a_loss_that_is_lost_uses_patience_up(lost: float) -> None:
    history = [{"loss": lost}, {"loss": lost}]
    assert bow.EarlyStopping(patience=2).is_over(history)
    assert not bow.EarlyStopping(patience=2).is_over([*history, {"loss": 1.0}])


def test_patience_counts_the_epochs_that_a_round_completes() -> None:
    history = [{"epoch": 2, "loss": 1.0}, {"epoch": 4, "loss": 1.0}, {"epoch": 6, "loss": 1.0}]
    assert not bow.EarlyStopping(patience=3).is_over(history[:2])
    assert bow.EarlyStopping(patience=3).is_over(history)
    assert bow.EarlyStopping(patience=2).is_over(history[:2])


def averaged(model: nn.Module, data: Data, decay: float, epochs: int) -> nn.Module:
    """The plain loop with torch's own average."""
    model = copy.deepcopy(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    optimizer = OPTIMIZER(model.parameters())
    for inputs, labels in dealt(data, 4, epochs=epochs):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        average.update_parameters(model)
    return average.module


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_the_moving_average_is_that_of_torch(train: Train, model: nn.Module, data: Data, engine: str) -> None:
    validation = bow.Validation(held_out(), ema=0.9)
    settings = {"learners": 1, "optimizer": OPTIMIZER, "epochs": 2, "engine": engine}
    result = train(model, data, validation=validation, **settings)
    expected = averaged(model, data, 0.9, epochs=2)
    for own, other in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
    inputs, labels = held_out()
    with torch.no_grad():
        assert result.metrics["loss"] == pytest.approx(cross_entropy(expected(inputs), labels).item(), rel=1e-6)
    plain = train(model, data, validation=held_out(), run_dir=None, **settings)
    assert plain.history[-1]["train_loss"] == result.history[-1]["train_loss"]


def test_an_average_of_bfloat16_moves(train: Train, data: Data) -> None:
    weights: list[Tensor] = []
    keep = Behind(lambda run: weights.append(run.replicas.central.weight.detach().float()))
    model = nn.Linear(5, 3, dtype=torch.bfloat16)
    validation = bow.Validation((data[0].bfloat16(), data[1]), ema=0.999)
    data = validation.data
    result = train(model, data, validation=validation, optimizer=OPTIMIZER, epochs=8, callbacks=[keep])
    average = weights[0]
    for each in weights[1:]:
        average = average.lerp(each, 1 - 0.999)
    assert torch.equal(result.model.weight, average.bfloat16())  # type: ignore[arg-type]
    assert not torch.equal(average.bfloat16(), weights[0].bfloat16())


def test_what_is_resumed_ends_as_if_nothing_had_happened(train: Train, model: nn.Module, data: Data) -> None:
    settings = {
        "validation": bow.Validation(held_out(), ema=0.8),
        "optimizer": OPTIMIZER,
        "stop": bow.EarlyStopping(patience=3),
        "epochs": 40,
        "checkpoint_every": 4,
    }
    whole = train(model, noisy(data), run_dir=None, **settings)
    with pytest.raises(PowerCut):
        train(model, noisy(data), callbacks=[StopAfter(whole.history[-1]["round"] - 3, PowerCut)], **settings)
    result = train(model, noisy(data), resume="auto", **settings)
    assert result.stopped == whole.stopped == "patience"
    assert_equal_models(result.model, whole.model)
    assert_equal_models(result.best.model, whole.best.model)
    assert result.best.round == whole.best.round
    ended = train(model, noisy(data), resume="auto", **settings)
    assert ended.history[-1]["round"] == whole.history[-1]["round"]


def test_an_average_that_cannot_be_is_refused(train: Train, model: nn.Module, data: Data) -> None:
    with pytest.raises(SettingError, match=r"validation.ema must be above 0 and below 1, or None .*, got 1"):
        bow.Validation(ema=1.0)
    with pytest.raises(SettingError, match="needs a central model that changes in every round"):
        train(model, data, validation=bow.Validation(ema=0.9), sync=bow.Independent())
    with pytest.raises(SettingError, match="members have no moving average"):
        bow.sweep(model, data, cross_entropy, variants=bow.grid(seed=[0]), validation=bow.Validation(ema=0.9))


def test_two_devices_end_behind_the_same_epoch_with_one_average(train: Train, model: nn.Module, data: Data) -> None:
    settings = {
        "validation": bow.Validation(held_out(), ema=0.8),
        "optimizer": OPTIMIZER,
        "stop": [bow.EarlyStopping(patience=2), Ends()],
        "engine": bow.Engine("eager", accumulate=2),
        "scheduler": bow.WarmupCosine(),
        "epochs": 8,
    }
    alone = train(model, data, learners=2, run_dir=None, **settings)
    both = train(model, data, learners=1, devices=2, **settings)
    assert both.stopped == alone.stopped == "enough"
    assert len(both.history) == 2
    for one, other in ((both.model, alone.model), (both.best.model, alone.best.model)):  # type: ignore[union-attr]
        for own, expected in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)
