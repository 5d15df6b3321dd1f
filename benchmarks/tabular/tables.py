"""Ten tables with at most 50,000 rows that need no download: from scikit-learn, and from its generators."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

from benchmarks.tabular.contestants import Data

SEED = 0  # of the generators


class Table(NamedTuple):
    title: str
    make: Callable[[], tuple[Any, Any]]  # rows and their targets
    is_classes: bool = True


def _own(load: Callable[..., Any]) -> Callable[[], tuple[Any, Any]]:
    return lambda: load(return_X_y=True)


def _hastie() -> tuple[Any, Any]:
    rows, targets = datasets.make_hastie_10_2(12_000, random_state=SEED)
    return rows, targets > 0


TABLES = {
    "wine": Table("Wine", _own(datasets.load_wine)),
    "breast_cancer": Table("Breast cancer", _own(datasets.load_breast_cancer)),
    "diabetes": Table("Diabetes", _own(datasets.load_diabetes), is_classes=False),
    "digits": Table("Digits", _own(datasets.load_digits)),
    "classes": Table(
        "make_classification, small",
        lambda: datasets.make_classification(2_000, 20, n_informative=8, random_state=SEED),
    ),
    "moons": Table("make_moons", lambda: datasets.make_moons(5_000, noise=0.3, random_state=SEED)),
    "friedman1": Table(
        "make_friedman1", lambda: datasets.make_friedman1(5_000, noise=1.0, random_state=SEED), is_classes=False
    ),
    "hastie": Table("make_hastie_10_2", _hastie),
    "friedman2": Table(
        "make_friedman2", lambda: datasets.make_friedman2(20_000, noise=100.0, random_state=SEED), is_classes=False
    ),
    "many_classes": Table(
        "make_classification, large",
        lambda: datasets.make_classification(50_000, 40, n_informative=12, n_classes=5, random_state=SEED),
    ),
}


def data_of(name: str) -> Data:
    """Return standardised float32 rows; class numbers, or standardised targets `[rows, 1]`."""
    table = TABLES[name]
    rows, targets = table.make()
    inputs = torch.from_numpy(StandardScaler().fit_transform(rows).astype(np.float32))
    if table.is_classes:
        return inputs, torch.from_numpy(np.asarray(targets).astype(np.int64))
    scaled = StandardScaler().fit_transform(np.asarray(targets)[:, None])
    return inputs, torch.from_numpy(scaled.astype(np.float32))
