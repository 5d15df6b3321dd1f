"""Early stopping and halving end the right members, and free their rows."""

import functools
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.nn import functional as F

import bow
from bow.errors import SettingError
from bow.members.report import SweepReport
from bow.observe import RunDirectory
from tests.members.test_equality import DATA, FLAT, LABELS, alone, assert_same, mlp, swept


def test_halving_keeps_the_best_of_every_rung(tmp_path: Path) -> None:
    data = (FLAT[:48], LABELS[:48])
    variants = bow.grid(seed=range(3), lr=[0.05, 0.02, 0.001])
    rule = bow.Halving(metric="loss", reduction=3)
    whole = swept(tmp_path / "whole", mlp, data, variants, engine="eager", epochs=9)
    result = swept(tmp_path / "sweep", mlp, data, variants, engine="eager", epochs=9, stop=rule, at_once=4)
    first = sorted(range(9), key=lambda n: whole.members[n].history[0]["loss"])[:3]
    second = sorted(first, key=lambda n: whole.members[n].history[2]["loss"])[:1]
    for number, member in enumerate(result.members):
        epochs = 9 if number in second else 3 if number in first else 1
        assert member.epochs == epochs
        assert member.stopped == (None if number in second else "halving")
        assert [r["loss"] for r in member.history] == [r["loss"] for r in whole.members[number].history[:epochs]]
    assert result.best.number == second[0]
    assert_same(result.best, whole.members[second[0]])


class Mistakes(bow.Accuracy):
    name = "mistakes"
    higher_is_better = False
    best = 0.0

    def compute(self) -> float:
        return 1 - super().compute()


def test_rules_look_the_way_that_a_metric_says(tmp_path: Path) -> None:
    variants = bow.grid(seed=range(2), lr=[0.1, 0.0])
    settings = {"engine": "eager", "epochs": 4, "validation": bow.Validation(DATA, metrics=[Mistakes()])}
    whole = swept(tmp_path / "whole", mlp, DATA, variants, **settings)
    rule = bow.Halving("mistakes", reduction=4, first=2)
    result = swept(tmp_path / "sweep", mlp, DATA, variants, stop=rule, **settings)
    values = [member.history[1]["mistakes"] for member in whole]
    assert len(set(values)) == 4
    assert [member.number for member in result if member.stopped is None] == [values.index(min(values))]
    assert result.best.number == values.index(min(values))
    assert SweepReport.read(RunDirectory(result.run_dir)).sweep.best.number == result.best.number


def test_asynchronous_halving_never_waits_and_promotes_the_best(tmp_path: Path) -> None:
    variants = bow.grid(seed=range(9), lr=[0.05])
    rule = bow.Halving(reduction=3, asynchronous=True)
    result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="eager", epochs=9, stop=rule, at_once=2)
    epochs = sorted(member.epochs for member in result.members)
    assert epochs.count(1) >= 5
    assert any(count > 1 for count in epochs)
    ended = {member.number: member.history[0]["loss"] for member in result.members}
    assert result.members[min(ended, key=ended.__getitem__)].epochs > 1  # the best of the first rung went on


def test_asynchronous_halving_trains_the_best_to_the_end(tmp_path: Path) -> None:
    variants = bow.grid(seed=range(4), lr=[0.05])
    rule = bow.Halving(reduction=3, asynchronous=True)
    result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="eager", epochs=9, stop=rule)
    assert max(member.epochs for member in result.members) == 9
    assert result.best.stopped is None
    assert len(result.ensemble.models) >= 1


def test_patience_ends_a_member_and_gives_its_row_away(tmp_path: Path) -> None:
    variants = [bow.Variant(name="stuck", settings={"lr": 0.0}), bow.Variant(name="learning", seed=1)]
    rule = bow.EarlyStopping(patience=2)
    result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="eager", epochs=5, stop=rule, at_once=1)
    assert result["stuck"].stopped == "patience"
    assert result["stuck"].epochs == 3
    assert_same(
        result["learning"],
        alone(tmp_path / "alone", mlp, DATA, variants[1], "eager", epochs=5, stop=rule),
    )


def test_a_target_ends_a_member(tmp_path: Path) -> None:
    validation = bow.Validation(DATA, target={"accuracy": 0.01})
    result = swept(tmp_path / "s", mlp, DATA, bow.grid(seed=[0, 1]), engine="eager", validation=validation)
    assert [(member.stopped, member.epochs) for member in result.members] == [("target", 1)] * 2


def test_an_unknown_metric_is_named_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"'f1'.*choose from .*accuracy"):
        swept(tmp_path / "s", mlp, DATA, [bow.Variant()], engine="eager", stop=bow.EarlyStopping(metric="f1"))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("learners", [0, 1, 2])
def test_a_rule_that_returns_no_reason_is_named(learners: int, tmp_path: Path) -> None:
    class Rule:
        def why_over(self, training: Any) -> Any:
            return training.history[-1]["train_loss"] > 100  # False would have ended it

    given: dict[str, Any] = {"engine": "eager", "stop": Rule(), "run": bow.Run(tmp_path / "s", progress=False)}
    train: Any = functools.partial(bow.sweep, variants=[bow.Variant()], learners=learners) if learners else bow.train
    with pytest.raises(SettingError, match=r"^Rule\.why_over returned False; return the reason to end as a string"):
        train(mlp, DATA, F.cross_entropy, **given)


def test_an_unknown_value_of_a_step_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return loss, {"norm": loss.detach()}

    with pytest.raises(SettingError, match=r"stop monitors 'bar', which is not recorded; choose from train_loss$"):
        bow.sweep(mlp, DATA, step=step, variants=[bow.Variant()], engine="eager",
                  stop=bow.EarlyStopping("bar"), run=bow.Run(tmp_path / "s", progress=False))  # fmt: skip


def test_two_rules_of_halving_are_refused() -> None:
    with pytest.raises(SettingError, match=r"several .*Halving rules"):
        bow.sweep(mlp, DATA, F.cross_entropy, variants=[bow.Variant()], stop=[bow.Halving(), bow.Halving()])
