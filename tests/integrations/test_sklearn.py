"""The estimators are scikit-learn's in every way, and what a loop of trainings would be."""

import functools
import pickle
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn
from torch.nn import functional as F

import bow
from bow.devices import num_threads
from bow.errors import SettingError

Classifier, Regressor = bow.sklearn.Classifier, bow.sklearn.Regressor

QUICK: dict[str, Any] = {"members": 2, "engine": "eager", "lr": 0.03, "epochs": 3, "batch_size": 16, "random_state": 0}

BLOBS = make_blobs(100, centers=3, n_features=4, cluster_std=2.5, random_state=1)
LINE = make_regression(100, n_features=4, noise=10.0, random_state=0)


def small(num_features: int, num_outputs: int, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(num_features, width), nn.Tanh(), nn.Linear(width, num_outputs))


def every_check() -> Iterator[Any]:
    """Of a regressor those of its targets always, and nightly the others, for which the two have one class.

    Of checks that come several times, with arrays of other kinds, the first always.
    """
    seen = set()
    for estimator in (Classifier(**QUICK), Regressor(**{**QUICK, "epochs": 8})):
        for made, check in estimator_checks_generator(estimator):
            name = check.func.__name__
            is_own = isinstance(estimator, Classifier) or "regressor" in name or "_y" in name
            named = f"{type(estimator).__name__}-{name}"
            marks = () if is_own and named not in seen else pytest.mark.nightly
            seen.add(named)
            yield pytest.param(made, check, marks=marks, id=named)


@pytest.mark.parametrize(("estimator", "check"), list(every_check()))
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def loop(path: Path, data: Any, loss: Any, num_outputs: int) -> list[nn.Module]:
    """What the members of QUICK are, one after another."""
    with num_threads(1):
        return [
            bow.train(
                functools.partial(small, 4, num_outputs),
                data,
                loss,
                learners=1,
                seed=int(seed),
                optimizer=functools.partial(torch.optim.AdamW, lr=0.03),
                batch_size=16,
                epochs=3,
                engine="eager",
                run=bow.Run(path / str(seed), progress=False),
            ).model
            for seed in check_random_state(0).randint(2**31 - 1, size=2)
        ]


def test_a_classifier_is_a_loop_of_trainings(tmp_path: Path) -> None:
    X, y = BLOBS
    inputs = torch.tensor(X, dtype=torch.float32)
    ensemble = Classifier(small, **QUICK).fit(X, y)
    models = loop(tmp_path, (inputs, torch.tensor(y)), F.cross_entropy, 3)
    with torch.no_grad():
        said = torch.stack([model(inputs).softmax(1).double() for model in models])
    assert np.array_equal(ensemble.predict_proba(X), said.mean(0).numpy())
    assert np.array_equal(ensemble.spread(X), said.std(0).numpy())
    assert ensemble.score(X, y) == (said.mean(0).argmax(1).numpy() == y).mean()


def test_a_regressor_is_a_loop_of_trainings(tmp_path: Path) -> None:
    X, y = LINE[0], LINE[1] / LINE[1].std()
    inputs, targets = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    ensemble = Regressor(small, **QUICK).fit(X, y)
    models = loop(tmp_path, (inputs, targets), F.mse_loss, 1)
    with torch.no_grad():
        said = torch.stack([model(inputs)[:, 0].double() for model in models])
    assert np.array_equal(ensemble.predict(X), said.mean(0).numpy())


def test_folds_are_what_a_loop_over_them_gives() -> None:
    X, y = BLOBS
    splits = list(StratifiedKFold(3).split(X, y))
    whole = Classifier(small, cv=3, **QUICK).fit(X, y)
    assert len(whole.ensemble_.models) == 6
    for fold, (train, held_out) in enumerate(splits):
        one = Classifier(small, **QUICK).fit(X[train], y[train])
        # labels are numbered alike: every fold has all three
        assert np.array_equal(whole.oof_[held_out], one.predict_proba(X[held_out]))
        assert whole.cv_scores_[fold] == one.score(X[held_out], y[held_out])
    assert np.allclose(whole.predict_proba(X).sum(1), 1)


def test_samples_that_no_fold_held_out_have_no_prediction() -> None:
    X, y = LINE[0], LINE[1] / LINE[1].std()
    one = Regressor(small, cv=ShuffleSplit(1, test_size=0.25, random_state=0), **QUICK).fit(X, y)
    assert np.isnan(one.oof_).sum() == 75
    assert one.oof_.shape == (100,)
    two = Regressor(small, cv=KFold(2), **QUICK).fit(X, np.stack([y, -y], 1))
    assert two.oof_.shape == (100, 2)
    assert two.predict(X).shape == two.spread(X).shape == (100, 2)
    assert len(two.cv_scores_) == 2


def test_scikit_learns_own_ways_lead_to_it() -> None:
    X, y = BLOBS
    labels = np.array(["a", "b", "c"])[y]
    pipeline = make_pipeline(StandardScaler(), Classifier(small, **QUICK))
    scores = cross_val_score(pipeline, X, labels, cv=3)
    again = [
        clone(pipeline).fit(X[train], labels[train]).score(X[test], labels[test])
        for train, test in StratifiedKFold(3).split(X, labels)
    ]
    assert scores.tolist() == again
    search = GridSearchCV(pipeline, {"classifier__lr": [0.0, 0.03]}, cv=2).fit(X, labels)
    assert search.best_params_ == {"classifier__lr": 0.03}
    back = pickle.loads(pickle.dumps(search.best_estimator_))
    assert np.array_equal(back.predict_proba(X), search.predict_proba(X))
    assert set(back.classes_) == {"a", "b", "c"}


def test_early_stopping_holds_samples_out() -> None:
    X, y = BLOBS
    stop = bow.EarlyStopping(metric="accuracy", patience=1)
    ensemble = Classifier(small, early_stopping=stop, **{**QUICK, "epochs": 20}).fit(X, y)
    assert all(len(history) < 20 for history in ensemble.histories_)
    assert {"loss", "accuracy"} <= ensemble.histories_[0][0].keys()
    assert ensemble.histories_[0][0]["samples"] == 96  # six batches: 90 are trained on


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Classifier(small, **QUICK).fit(*BLOBS)
    assert list(tmp_path.iterdir()) == []


def test_members_that_are_lost_are_told() -> None:
    X, y = BLOBS
    with pytest.raises(SettingError, match="2 of 2 members diverged"):
        Classifier(optimizer=torch.optim.SGD, **{**QUICK, "lr": 1e30}).fit(X, y)

    def fragile(num_features: int, num_outputs: int) -> nn.Module:
        model = small(num_features, num_outputs)
        if model[0].weight[0, 0] > 0:
            model[0].weight.data[:] = torch.finfo(torch.float32).max
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.warns(ConvergenceWarning, match="of 6 members diverged"):
            ensemble = Classifier(fragile, **{**QUICK, "members": 6}).fit(X, y)
    assert 0 < len(ensemble.ensemble_.models) < 6


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"module": nn.Linear(4, 3)}, "module must be a function"),
        ({"module": 3}, "module must be a function"),
        ({"members": 0}, "members"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"early_stopping": 3}, "early_stopping must be"),
        ({"engine": "fused"}, "fused"),
        ({"cv": 200}, "n_splits=200"),
        ({"cv": iter(())}, "yields no folds"),
        ({"module": lambda features, _: small(features, 1), "loss": lambda o, y: o.mean()}, "per sample for 3 classes"),
        ({"module": lambda: nn.Linear(4, 3)}, r"function module\(num_features, num_outputs\), got <function"),
        ({"optimizer": "adam"}, "factory optimizer.*, got 'adam'"),
        (
            {"early_stopping": bow.EarlyStopping(), "validation_fraction": 0},
            "validation_fraction must be above 0 .*got 0",
        ),
    ],
)
def test_wrong_use_gets_a_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Classifier(**{"module": small, **QUICK, **settings}).fit(*BLOBS)


@pytest.mark.parametrize("cv", [None, 2])
@pytest.mark.parametrize(("outputs", "layer"), [(r"\[\]", nn.Flatten(0)), (r"\[3\]", nn.Linear(1, 3))])
def test_a_regressor_has_an_output_for_each_target(outputs: str, layer: nn.Module, cv: int | None) -> None:
    def module(num_features: int, num_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(num_features, num_outputs), layer)

    with pytest.raises(ValueError, match=f"returns {outputs} outputs per sample for 1 target values; return .batch, 1"):
        Regressor(module, cv=cv, loss=lambda o, y: (o - y).square().mean(), **QUICK).fit(*LINE)
