from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bow
from bow.engines.graph import Graph
from bow.errors import SettingError
from tests.training.blueprints import Behind, Data, Given, Train, assert_equal_models


class Diary(bow.Callback):
    def __init__(self) -> None:
        self.entries: list[Any] = []

    def on_train_start(self, run: Any) -> None:
        self.entries.append(("start", run.round, run.samples))

    def on_round_end(self, run: Any) -> None:
        assert run.replicas.last.losses.shape == (2,)
        self.entries.append(("round", run.round, run.samples))

    def on_epoch_end(self, run: Any, record: Any) -> None:
        assert record is run.history[-1]
        self.entries.append(("epoch", record["epoch"], "accuracy" in record))

    def on_train_end(self, run: Any, result: bow.Result) -> None:
        assert (result.run_dir / "model.safetensors").exists()
        self.entries.append(("end", run.round, result))


def test_hooks_are_called_in_order(train: Train, model: nn.Module, data: Data) -> None:
    diary = Diary()
    result = train(model, data, batch_size=12, epochs=2, validation=data, callbacks=[diary])
    rounds = [("round", 1, 24), ("round", 2, 48), ("epoch", 1, True), ("round", 3, 72), ("round", 4, 96)]
    assert diary.entries == [("start", 0, 0), *rounds, ("epoch", 2, True), ("end", 4, result)]


def test_an_object_with_one_hook_is_enough(train: Train, model: nn.Module, data: Data) -> None:
    def stop(run: Any) -> None:
        if run.round == 4:
            run.stop()

    result = train(model, data, epochs=5, validation=data, callbacks=[Behind(stop)])
    (record,) = result.history
    assert (record["round"], record["samples"]) == (4, 32)
    assert record["epoch"] == pytest.approx(32 / 48, abs=1e-4)
    assert "accuracy" in record, "what was trained is evaluated"


def test_stopping_before_the_first_round_leaves_the_model_as_it_was(train: Train, model: nn.Module, data: Data) -> None:
    class Stopper:
        def on_train_start(self, run: Any) -> None:
            run.stop()

    result = train(model, data, validation=data, callbacks=[Stopper()])
    assert result.model.state_dict()["weight"].equal(model.weight)
    assert result.history[0]["round"] == 0


def test_a_callback_may_add_and_remove_learners(train: Train, model: nn.Module, data: Data) -> None:
    def resize(run: Any) -> None:
        if run.round == 2:
            run.replicas.resize(run.replicas.learners + 1)
        if run.round == 4:
            run.replicas.resize(run.replicas.learners - 1)
            run.replicas.resize(run.replicas.learners - 1)

    result = train(model, data, epochs=3, callbacks=[Behind(resize)])
    assert result.learners == 1
    assert result.history[-1]["samples"] == 3 * 48, "every sample still once an epoch"
    assert result.history[-1]["round"] == 2 + 2 + (144 - 2 * 8 - 2 * 12) // 4


def test_an_error_in_a_callback_ends_the_training(train: Train, model: nn.Module, data: Data, tmp_path: Path) -> None:
    class Broken:
        def on_epoch_end(self, run: Any, record: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(model, data, callbacks=[Broken()])
    assert (tmp_path / "run" / "metrics.jsonl").exists(), "what was recorded is kept"


@pytest.mark.parametrize(
    "wrong",
    [[Diary], [print], Diary(), [None], ["on_round_end"]],
    ids=["a class", "a function", "no list", "nothing", "a name"],
)
def test_objects_without_hooks_are_refused(
    train: Train, model: nn.Module, data: Data, tmp_path: Path, wrong: Any
) -> None:
    with pytest.raises(SettingError, match="callbacks must be"):
        train(model, data, callbacks=wrong)
    assert not (tmp_path / "run").exists()


class Fails(Exception):
    """The user's own."""


class Failing(Given):
    """A metric or a callback that fails once, at some place."""

    def __init__(self, where: str, at: int, again: bool = False) -> None:
        super().__init__("failing", itertools.repeat(1.0))
        self.where, self.at, self.again = where, at, again
        self.heard: list[int] = []

    def reset(self) -> None:
        self._fail("metric", len(self.heard) + 1)

    def on_round_end(self, run: Any) -> None:
        self._fail("round", run.round)

    def on_epoch_end(self, run: Any, record: Any) -> None:
        self.heard.append(run.epoch)
        self._fail("epoch", run.epoch)

    def _fail(self, where: str, now: int) -> None:
        if (where, now) == (self.where, self.at) and not self.again:
            raise Fails


@pytest.mark.sample(3)  # by day each moment with one or two of engines and kinds of schedulers
@pytest.mark.parametrize("per_round", [False, True])
@pytest.mark.parametrize(("engine", "settings"), [("eager", {}), ("graph", {"dispatch": "first_come"})])
@pytest.mark.parametrize(
    ("where", "at"), [("round", 4), ("round", 6), ("round", 18), ("metric", 2), ("epoch", 2), ("epoch", 3)]
)
def test_what_a_user_raises_leaves_a_checkpoint_that_goes_on(
    where: str, at: int, engine: str, settings: Any, per_round: bool, train: Any, model: Any, data: Any, tmp_path: Path
) -> None:
    def trained(name: str, failing: Failing, **more: Any) -> bow.Result:
        scheduler = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=4 if per_round else 1, gamma=0.5)
        return train(
            model, data, validation=bow.Validation(data, metrics=[failing]), callbacks=[failing], epochs=3,
            scheduler=bow.PerRound(scheduler) if per_round else scheduler, engine=engine,
            run_dir=tmp_path / name, learners=1 if engine == "graph" else 2, **settings, **more,
        )  # fmt: skip

    expected = trained("whole", Failing(where, at, again=True))
    with pytest.raises(Fails) as raised:
        trained("run", Failing(where, at))
    (note,) = raised.value.__notes__
    assert "there is a checkpoint of round" in note
    assert "run.resume=auto" in note or "resume" in note
    found = trained("run", Failing(where, at, again=True), resume="auto")
    assert [record["epoch"] for record in found.history] == [1, 2, 3]
    assert_equal_models(found.model, expected.model)
    assert [record["lr"] for record in found.history] == [record["lr"] for record in expected.history]


def test_a_target_that_nothing_measures_leaves_what_was_trained(train: Any, model: Any, data: Any) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(SettingError, match="target names 'x', which is not measured; choose from loss") as raised:
        train(model, data, step=step, validation=data, target={"x": 1})
    assert "there is a checkpoint of round 6" in raised.value.__notes__[0]


@pytest.mark.parametrize("setting", ["callbacks", "stop"])
def test_halving_is_for_sweeps(setting: str, train: Any, model: Any, data: Any) -> None:
    with pytest.raises(SettingError, match=rf"members of a sweep, got {setting}=.*; use bow\.sweep"):
        train(model, data, **{setting: [bow.Halving()]})


def test_what_the_last_check_raises_leaves_a_checkpoint(
    train: Any, model: Any, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(model, data, epochs=2, engine="graph", run_dir=tmp_path / "whole")

    def fail(self: Graph) -> None:
        raise Fails

    with monkeypatch.context() as patched:
        patched.setattr(Graph, "check_last", fail)
        with pytest.raises(Fails) as raised:
            train(model, data, epochs=2, engine="graph", run_dir=tmp_path / "run")
    assert "there is a checkpoint of round 12" in raised.value.__notes__[0]
    found = train(model, data, epochs=2, engine="graph", run_dir=tmp_path / "run", resume="auto")
    assert [record["epoch"] for record in found.history] == [1, 2]
    assert_equal_models(found.model, expected.model)
