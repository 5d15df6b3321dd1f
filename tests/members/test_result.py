"""The best, the ensemble, comparisons."""

import dataclasses
import functools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from scipy import stats
from sklearn.model_selection import KFold
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bow
from bow.errors import DataError, SettingError
from bow.members import Ensemble, Member, Sweep, folds
from bow.members.report import SweepReport
from bow.members.sweep import fold_variants
from bow.observe import RunDirectory


def made(values: dict[tuple[int, float], float]) -> Sweep:
    members = []
    for number, ((seed, lr), value) in enumerate(values.items()):
        member = Member(number, bow.Variant(seed=seed, settings={"lr": lr}, name=f"{seed} {lr}"), Path())
        member.history = [{"epoch": 1, "train_loss": 1.0, "accuracy": value}]
        members.append(member)
    return Sweep(members, Path(), 1.0, "eager", 1, 1.0, metrics=(bow.Accuracy(),))


VALUES = {(0, 0.1): 0.5, (0, 0.2): 0.7, (1, 0.1): 0.6, (1, 0.2): 0.7, (2, 0.1): 0.4, (2, 0.2): 0.7}


def test_comparisons_are_paired_over_seeds() -> None:
    (only,) = made(VALUES).compare("lr")
    expected = stats.ttest_rel([0.7, 0.7, 0.7], [0.5, 0.6, 0.4]).confidence_interval()
    assert (only.low, only.high, only.pairs) == (0.1, 0.2, 3)
    assert only.mean == pytest.approx(0.2)
    assert only.interval == pytest.approx((expected.low, expected.high))
    assert not only.is_clear


def test_one_pair_has_no_interval() -> None:
    differences = made({(0, 0.1): 0.5, (0, 0.2): 0.7}).compare("lr")
    assert str(differences).splitlines()[1] == "  0.2 - 0.1: +20.00 points (-inf to +inf points, n=1)"
    (only,) = differences
    assert only.interval == (-math.inf, math.inf)


def test_members_that_others_were_better_than_are_compared_at_the_epochs_of_both() -> None:
    sweep = made({(0, 0.1): 0.5, (0, 0.2): 0.7, (1, 0.1): 0.6, (1, 0.2): 0.9, (2, 0.1): 0.1, (2, 0.2): 0.9})
    for member in sweep.members[:3:2]:
        member.stopped = "halving"
    for member in sweep.members[1:4:2]:  # went on
        member.history.append({"epoch": 9, "train_loss": 0.1, "accuracy": 1.0})
    sweep.members[4].stopped = "diverged"
    (only,) = sweep.compare("lr")
    assert (only.pairs, only.mean) == (2, pytest.approx((0.2 + 0.3) / 2))
    assert sweep.members[1].value("accuracy") == 1.0
    sweep.members[1].history.append({"epoch": 10, "train_loss": 0.1})
    assert math.isnan(sweep.members[1].value("accuracy"))


def test_a_comparison_without_pairs_is_refused() -> None:
    with pytest.raises(SettingError, match="no two members differ"):
        made({(0, 0.1): 0.5, (1, 0.2): 0.7}).compare("lr")
    with pytest.raises(SettingError, match="no variant has a setting 'width'"):
        made(VALUES).compare("width")


def test_the_best_is_the_most_accurate() -> None:
    assert made(VALUES).best.name == "0 0.2"
    assert made({(0, 0.1): math.nan, (1, 0.1): 0.1}).best.name == "1 0.1"


SWEEP = {"engine": "eager", "optimizer": functools.partial(torch.optim.SGD, lr=0.1)}
DATA = torch.randn(40, 3), torch.randint(0, 2, (40,))


def swept(path: Path, variants: list[bow.Variant], **settings: Any) -> Sweep:
    run = bow.Run(path / "s", progress=False)
    return bow.sweep(lambda: nn.Linear(3, 2), DATA, F.cross_entropy, variants=variants, run=run, **(SWEEP | settings))


def test_settings_of_an_optimizers_partial_are_settings(tmp_path: Path) -> None:
    variants = [
        bow.Variant(seed=s, optimizer=functools.partial(torch.optim.SGD, lr=lr, momentum=0.9))
        for s in range(2)
        for lr in (0.01, 0.02, 0.04)
    ]
    result = swept(tmp_path, variants)
    assert [member.name for member in result][:2] == ["seed=0 lr=0.01", "seed=0 lr=0.02"]
    assert [each[:2] + each[4:] for each in result.compare("lr")] == [(0.01, 0.02, 2), (0.01, 0.04, 2), (0.02, 0.04, 2)]
    assert result.varying == ["lr"]
    report = SweepReport.read(RunDirectory(result.run_dir))
    assert "Loss by lr" in [chart.title for chart in report.charts]
    assert [setting for setting, _ in report.comparisons] == ["lr"]
    assert not report.unpaired


def test_optimizers_are_compared_with_the_settings_that_each_has(tmp_path: Path) -> None:
    sgd, adam = functools.partial(torch.optim.SGD, lr=0.1), functools.partial(torch.optim.AdamW, lr=0.001, eps=1e-7)
    result = swept(tmp_path, bow.grid(seed=range(3), optimizer=[sgd, adam]))
    assert [member.name for member in result][:2] == [
        "seed=0 lr=0.1 optimizer=SGD",
        "seed=0 lr=0.001 eps=1e-07 optimizer=AdamW",
    ]
    (only,) = result.compare("optimizer")
    assert (only.low, only.high, only.pairs) == ("SGD", "AdamW", 3)
    with pytest.raises(SettingError, match="differ in 'lr' alone"):
        result.compare("lr")
    assert [setting for setting, _ in SweepReport.read(RunDirectory(result.run_dir)).comparisons] == ["optimizer"]
    both = [functools.partial(kind, lr=lr) for kind in (torch.optim.SGD, torch.optim.AdamW) for lr in (0.1, 0.01)]
    result = swept(tmp_path / "both", bow.grid(seed=range(2), optimizer=both))
    assert [each.pairs for each in result.compare("lr")] == [4]
    assert [each.pairs for each in result.compare("optimizer")] == [4]


@pytest.mark.parametrize("many", [False, True])
def test_folds_given_twice_are_one(many: bool, tmp_path: Path) -> None:
    variants = [
        bow.Variant(settings={"lr": lr}, train_on=list(range(fold, 30)), validate_on=range(30, 40), name=f"{fold} {lr}")
        for fold in range(2)
        for lr in (0.1, 0.2)
    ]
    proposed = SimpleNamespace(ask=iter([*variants, None]).__next__, tell=lambda member: None)
    result = swept(tmp_path, proposed if many else variants)  # type: ignore[arg-type]
    (only,) = result.compare("lr")
    assert only.pairs == 2
    report = SweepReport.read(RunDirectory(result.run_dir))
    assert [member.variant.values["fold"] for member in report.sweep] == [0, 0, 1, 1]


def test_members_evaluated_on_other_samples_are_no_pair(tmp_path: Path) -> None:
    parts = {"first": range(30, 35), "last": range(35, 40)}
    variants = [
        bow.Variant(settings={"lr": lr}, train_on=range(30), validate_on=parts[part], name=f"{part} {lr}")
        for lr, part in ((0.1, "first"), (0.1, "last"), (0.2, "last"), (0.2, "first"))
    ]
    result = swept(tmp_path, variants)
    (only,) = result.compare("lr", "loss")
    expected = [result[f"{part} 0.2"].value("loss") - result[f"{part} 0.1"].value("loss") for part in parts]
    assert (only.pairs, only.mean) == (2, pytest.approx(sum(expected) / 2))
    assert [each.pairs for each in SweepReport.read(RunDirectory(result.run_dir)).sweep.compare("lr")] == [2]


def test_members_are_found_by_name_and_number(tmp_path: Path) -> None:
    result = made(VALUES)
    assert result[numpy.int64(1)] is result[1] is result[-5] is result["0 0.2"] is result.members[1]  # type: ignore[index]
    for name in (99, -7, "x", 1.5):
        with pytest.raises(SettingError, match=r"there is no member .*; there are 0 0.1, .* \(0 to 5\)"):
            result[name]  # type: ignore[index]


def test_one_model_has_no_spread() -> None:
    assert torch.equal(Ensemble([nn.Identity()], "outputs").spread(torch.ones(2, 3)), torch.zeros(2, 3))


@pytest.mark.parametrize(("train", "held_out", "shared"), [(range(30), range(20, 40), 10), (None, [3, 3, 5], 2)])
def test_members_evaluated_on_what_they_are_trained_on_are_said(
    train: Any, held_out: Any, shared: int, tmp_path: Path
) -> None:
    variants = [bow.Variant(name=name, seed=len(name), train_on=train, validate_on=held_out) for name in ("a", "bb")]
    with pytest.warns(UserWarning, match=f"variant 'a' is evaluated on {shared} samples .*affected: 1"):
        swept(tmp_path, variants)
    folds = [(range(30), range(10))]
    with pytest.warns(UserWarning, match="'fold=0 seed=0' is evaluated on 10 samples"):
        bow.cross_validate(
            nn.Linear(3, 2), DATA, F.cross_entropy, folds=folds, run=bow.Run(tmp_path / "f", progress=False)
        )


class Counting:
    """A step with state in Python."""

    n = 0

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.n += 1
        return F.cross_entropy(model(batch[0]), batch[1]) * (1.0 if self.n < 20 else 0.1)


class CountingLoss(nn.Module):
    n = 0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.n += 1
        return F.cross_entropy(outputs, targets) * self.n


def drawing() -> Any:
    generator = torch.Generator()
    return lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]) * torch.rand((), generator=generator)


def averaging() -> Any:
    mean = 0.0

    def step(model: nn.Module, batch: Any) -> Tensor:
        nonlocal mean
        mean = 0.9 * mean + 0.1 * float(batch[0].mean())
        return F.cross_entropy(model(batch[0] - mean), batch[1])

    return step


def weighting() -> Any:
    weight = torch.ones(())
    return lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]) * weight.mul_(0.9).clone()


STATES: dict[str, tuple[dict[str, Any], str]] = {
    "attribute": ({"step": Counting()}, "'step.n'"),
    "method": ({"step": Counting().__call__}, "n'"),
    "variable": ({"step": averaging()}, "'mean'"),
    "loss": ({"loss": CountingLoss()}, "'n'"),
    "tensor": ({"step": weighting()}, "a tensor"),
    "generator": ({"step": drawing()}, "the state of a random generator"),
}


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize(("engine", "learners"), [("eager", 1), ("graph", 1), ("eager", 2)])
def test_a_step_with_state_of_its_own_is_refused(kind: str, engine: str, learners: int, tmp_path: Path) -> None:
    given, name = STATES[kind]
    run = bow.Run(tmp_path / "s", progress=False)
    common: dict[str, Any] = {"engine": engine, "learners": learners, "run": run}
    with pytest.raises(SettingError, match=f"step or loss changes .*{name}.*; keep it in a buffer"):
        bow.sweep(lambda: nn.Linear(3, 2), DATA, **given, variants=bow.grid(seed=range(2)), **common)
    assert not (tmp_path / "s").exists()
    if learners == 1 and engine == "eager":
        bow.sweep(lambda: nn.Linear(3, 2), DATA, **given, variants=[bow.Variant()], **common)  # it is nobody else's


def test_a_step_that_keeps_what_it_has_once_computed_is_taken(tmp_path: Path) -> None:
    kept: dict[str, Tensor] = {}

    def step(model: nn.Module, batch: Any) -> Tensor:
        weight = kept.setdefault("weight", torch.ones(2))
        return F.cross_entropy(model(batch[0]), batch[1], weight)

    run = bow.Run(tmp_path / "s", progress=False)
    bow.sweep(lambda: nn.Linear(3, 2), DATA, step=step, variants=bow.grid(seed=range(2)), engine="eager", run=run)


def test_a_value_that_no_metric_knows_ranks_nobody() -> None:
    result = made(VALUES)
    for member in result:
        member.history[0] = {"epoch": 1, "loss": member.history[0]["accuracy"], "perplexity": 2.0}
    assert result.metric == "loss"
    assert result.best.name == "2 0.1"


def test_an_ensemble_is_the_mean_of_probabilities_and_its_spread() -> None:
    models = [nn.Linear(3, 2) for _ in range(4)]
    inputs = torch.randn(5, 3)
    each = torch.stack([model(inputs).softmax(-1) for model in models])
    ensemble = Ensemble(models, "probabilities")
    assert torch.equal(ensemble(inputs), each.mean(0))
    assert torch.equal(ensemble.spread(inputs), each.std(0))


def test_folds_hold_out_every_sample_once_and_classes_evenly() -> None:
    labels = torch.tensor([0] * 20 + [1] * 10)
    pairs = folds(30, 5, labels=labels)
    held_out = torch.cat([test for _, test in pairs])
    assert sorted(held_out.tolist()) == list(range(30))
    assert all(labels[test].tolist().count(1) == 2 for _, test in pairs)
    assert all(not set(train.tolist()) & set(test.tolist()) for train, test in pairs)


def test_a_value_that_no_member_has_is_refused() -> None:
    result = made(VALUES)
    for ask in (result.ranked, result.mean, lambda name: result.compare("lr", name)):
        with pytest.raises(SettingError, match=r"no value 'acuracy'; there are .*accuracy"):
            ask("acuracy")


def test_a_mean_over_one_that_diverged_is_not_a_number() -> None:
    result = made(VALUES)
    result.members[0].history, result.members[0].stopped = [], "diverged"
    assert all(map(math.isnan, result.mean()))


def test_an_ensemble_knows_a_loss_with_settings() -> None:
    result = made(VALUES)
    result.members[0].model = nn.Identity()
    smooth = dataclasses.replace(result, loss=functools.partial(F.cross_entropy, label_smoothing=0.1))
    assert smooth.ensemble.combine == "probabilities"


def test_seeds_that_can_be_gone_through_once_are_for_all_folds() -> None:
    data = torch.randn(6, 3), torch.arange(6) % 2
    assert len(fold_variants(data, numpy.int64(3), iter((0, 1)), None)) == 6
    loader = DataLoader(TensorDataset(*data), batch_size=2)
    wrong: list[tuple[Any, Any, Any, Any, str]] = [
        (data, 2.5, (0,), None, "folds must be"),
        (data, 1, (0,), None, "folds must be .*at least 2, .*got 1"),
        (data, KFold(3), (0,), None, r"pairs \(train, test\) .*KFold\(5\).split\(data\)"),
        (data, 3, 2, None, "seeds must"),
        (data, 3, [], None, r"one or more different seeds, got \[\]"),
        (data, 3, [1, 1], None, r"one or more different seeds, got \[1, 1\]"),
        (data, 3, [0.5], None, "seed must be a whole number .*got 0.5"),
        (data, 3, (0,), "yes", "stratify must be True, False or None, got 'yes'"),
        (data, 7, (0,), False, "folds=7 are more than the 6 samples"),
        (loader, 3, (0,), None, "folds need tensors or a Dataset as data, got DataLoader"),
    ]
    for given, count, seeds, stratify, said in wrong:
        with pytest.raises(SettingError, match=said):
            fold_variants(given, count, seeds, stratify)


SHORT = functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=3, cycle_momentum=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"variants": []}, "at least one"),
        ({"variants": bow.Variant()}, "list of bow.Variant"),
        ({"variants": [3]}, "must be bow.Variant"),
        ({"variants": "seed"}, "list of bow.Variant"),
        ({"variants": [bow.Variant(), bow.Variant()]}, "are equal"),
        ({"variants": [bow.Variant(name="a"), bow.Variant(name="a", seed=1)]}, "named 'a'"),
        ({"variants": [bow.Variant(settings={"learning_rate": 1})]}, "optimizer cannot be made"),
        ({"variants": [bow.Variant(settings={"lr": math.nan})]}, "not finite"),
        ({"variants": [bow.Variant(model={"depth": 3})]}, "depth"),
        ({"variants": [bow.Variant(train_on=[])]}, "no samples"),
        ({"variants": [bow.Variant(train_on=[99])]}, "have 40 samples"),
        ({"variants": [bow.Variant(train_on=[0.5])]}, "integer sample indices"),
        ({"variants": [bow.Variant(train_on=torch.ones(3, dtype=torch.bool))]}, "mask of 3"),
        ({"variants": [bow.Variant(name="few", train_on=[1, 2])]}, "variant 'few': the data have 2 samples"),
        ({"variants": [bow.Variant(train_on=3)]}, "list or tensor of sample indices, or a mask, got 3"),  # type: ignore[arg-type]
        ({"variants": [bow.Variant(train_on=[-1, 39])]}, "from -1 to 39, .*; use 0 to 39"),
        ({"variants": bow.grid(lr="0.1,0.2")}, "variant 'seed=0' with {'lr': '0.1,0.2'}: the optimizer cannot be made"),
        ({"variants": bow.grid(lr=[0.1, -1])}, "variant 'lr=-1' with {'lr': -1}: .*Invalid learning rate"),
        (
            {"variants": bow.grid(lr=[0.1, 0.2]), "optimizer": "sgd"},
            "variant 'lr=0.1' .*: the optimizer cannot be made",
        ),
        ({"variants": [bow.Variant(optimizer="sgd", settings={"lr": 1})]}, "'str' object is not callable"),  # type: ignore[arg-type]
        ({"variants": [bow.Variant(name="a"), bow.Variant(scheduler="b")]}, "variant 'scheduler=b': scheduler must be"),  # type: ignore[arg-type]
        ({"variants": [bow.Variant(), bow.Variant(seed=1, batch_size=99)]}, "variant 'seed=1 batch_size=99': the data"),
        (
            {"variants": bow.grid(differentiable=[False, True]), "at_once": 1},
            "variant 'differentiable=True' with .*fails on this model's parameters",
        ),
        (
            {"variants": [bow.Variant(name="held out", validate_on=range(4)), bow.Variant(name="bare")]},
            "variant 'bare' is not evaluated and others are",
        ),
        ({"variants": [bow.Variant()], "engine": "fused"}, "fused"),
        ({"variants": [bow.Variant()], "at_once": 0}, "at_once"),
        ({"variants": [bow.Variant()], "batches": "mine"}, "batches"),
        ({"variants": [bow.Variant()], "stop": 3}, "stop must be"),
        ({"variants": [bow.Variant()], "stop": "early"}, "got 'early'"),
        ({"variants": [bow.Variant()], "devices": 2, "learners": 2}, "one device each"),
        ({"variants": [bow.Variant()], "batch_size": 64}, "batch"),
        ({"variants": [bow.Variant(train_on=set(range(50000)))]}, "got {0, 1, 2"),  # type: ignore[arg-type]
        ({"variants": [bow.Variant(), range(50000)]}, "got range"),
        ({"variants": [bow.Variant(), list(range(50000))]}, "got .0, 1"),
        ({"variants": [bow.Variant(model={"width": list(range(50000))})]}, "width=.0, 1"),
        ({"variants": [bow.Variant()] * 2, "stop": bow.Halving()}, "are equal"),
        ({"variants": bow.grid(seed=range(3)), "stop": bow.Halving(), "steps": 2}, "after 1 epoch .*steps=2, 0.8 epo"),
        ({"variants": bow.grid(seed=range(3)), "stop": bow.Halving(first=4), "epochs": 4}, "after 4 epochs .*epochs=4"),
        ({"variants": [bow.Variant()], "validation": bow.Validation(every=0.5)}, "every epoch"),
        (
            {"variants": [bow.Variant()], "validation": bow.Validation(buffers="recalibrate")},
            "of their training; leave",
        ),
        ({"variants": [bow.Variant()], "validation": (torch.ones(9, 5), torch.ones(9).long())}, "batch of validation"),
        ({"variants": bow.grid(lr=[0.1, 0.2]), "scheduler": SHORT, "epochs": 5}, "'lr=0.1' .*has total_steps=3"),
        (
            {"variants": [bow.Variant(), bow.Variant(seed=1, batch_size=24)], "learners": 2},
            "batch_size=24': the data have 40 samples and one round of 2 learners",
        ),
    ],
)
def test_wrong_use_gets_a_sentence(settings: dict[str, object], said: str, tmp_path: Path) -> None:
    data = torch.randn(40, 3), torch.randint(0, 2, (40,))
    with pytest.raises(bow.BowError, match=said) as caught:
        bow.sweep(
            lambda: nn.Linear(3, 2), data, F.cross_entropy, run=bow.Run(tmp_path / "s", progress=False), **settings
        )
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "s").exists()


def test_a_part_of_the_data_that_leaves_batch_norm_one_sample_is_refused(tmp_path: Path) -> None:
    data, variants = (torch.randn(40, 3), torch.randint(0, 2, (40,))), [bow.Variant(name="a", train_on=range(17))]
    settings: dict[str, Any] = {"variants": variants, "batch_size": 8, "epochs": 1}
    with pytest.raises(DataError, match="variant 'a': with batch_size=8, the last batch of all epochs has one"):
        bow.sweep(lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), data, F.cross_entropy, **settings)
    run = bow.Run(tmp_path / "s", progress=False)
    (member,) = bow.sweep(lambda: nn.Linear(3, 2), data, F.cross_entropy, run=run, **settings)
    assert member.stopped is None


def test_settings_of_a_variant_that_are_none_are_refused_at_once() -> None:
    with pytest.raises(SettingError, match="mapping with string keys"):
        bow.Variant(settings=3)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="no values for lr"):
        bow.grid(lr=[])
    with pytest.raises(SettingError, match="patience"):
        bow.EarlyStopping(patience=0)
    with pytest.raises(SettingError, match="asynchronous must be True or False, got 'yes'"):
        bow.Halving(asynchronous="yes")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="buffers must be one of average, recalibrate, first, got 'recalibrat'"):
        bow.Validation(buffers="recalibrat")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="class 1 has 1 samples"):
        folds(9, 3, labels=torch.tensor([0] * 8 + [1]))


def test_settings_that_are_tensors_or_numpy_scalars_are_numbers() -> None:
    rates = torch.logspace(-4, -3.9, 3)
    variants = bow.grid(lr=rates, momentum=numpy.linspace(0, 0.9, 2))
    assert [variant.settings["lr"] for variant in variants[::2]] == rates.tolist()
    assert {type(value) for variant in variants for value in variant.settings.values()} == {float}
    own = bow.Variant(optimizer=functools.partial(torch.optim.SGD, lr=rates[1]))
    assert own.values == {"seed": 0, "lr": float(rates[1]), "optimizer": "SGD"}


def test_keywords_of_the_model_do_not_hide_other_settings(tmp_path: Path) -> None:
    def model(name: str, lr: float, seed: int = 0) -> nn.Module:
        return nn.Linear(3, 2)

    variants = [
        bow.Variant(seed=seed, settings={"lr": lr}, model={"name": name, "lr": 0.5, "seed": 7})
        for name in "ab"
        for seed in range(2)
        for lr in (0.1, 0.2)
    ]
    assert variants[1].values == {"seed": 0, "lr": 0.2, "model.name": "a", "model.lr": 0.5, "model.seed": 7}
    run = bow.Run(tmp_path / "s", progress=False)
    result = bow.sweep(model, DATA, F.cross_entropy, variants=variants, run=run, **SWEEP)
    assert [each.pairs for each in result.compare("lr")] == [4]
    read = SweepReport.read(RunDirectory(result.run_dir)).sweep
    assert [member.name for member in read] == [member.name for member in result]
    assert all(member.history for member in read)


def test_a_seed_that_has_no_effect_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match='^seed=3 has no effect with batches="own", .*; give bow.Variant'):
        swept(tmp_path / "own", [bow.Variant()], seed=3)
    swept(tmp_path / "shared", [bow.Variant()], seed=3, batches="shared")
