"""The regression models that Liu et al. compared, as scikit-learn has them."""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

Estimator: TypeAlias = Any
"""A scikit-learn regressor."""

SUBSETS = 300
"""So many subsets of the samples are solved by Theil-Sen; by default it would be up to ten thousand, for minutes."""


def _made(module: str, name: str, is_random: bool = True, **settings: Any) -> Callable[[int], Estimator]:
    """What makes an estimator of scikit-learn from a seed; it is imported when one is made."""

    def make(seed: int) -> Estimator:
        chosen = getattr(importlib.import_module(f"sklearn.{module}"), name)
        return chosen(**settings, **({"random_state": seed} if is_random else {}))

    return make


def _passive_aggressive(seed: int) -> Estimator:
    import sklearn

    if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8):
        return _made("linear_model", "PassiveAggressiveRegressor")(seed)
    # Its own class is deprecated there.
    settings: dict[str, Any] = {"loss": "epsilon_insensitive", "penalty": None, "learning_rate": "pa1", "eta0": 1.0}
    return _made("linear_model", "SGDRegressor", **settings)(seed)


ESTIMATORS: Mapping[str, Callable[[int], Estimator]] = MappingProxyType(
    {
        "gradient boosting": _made("ensemble", "GradientBoostingRegressor"),
        "k-neighbours": _made("neighbors", "KNeighborsRegressor", is_random=False),
        "Theil-Sen": _made("linear_model", "TheilSenRegressor", max_subpopulation=SUBSETS),
        "ordinary least squares": _made("linear_model", "LinearRegression", is_random=False),
        "passive aggressive": _passive_aggressive,
        "random forest": _made("ensemble", "RandomForestRegressor"),
        "decision tree": _made("tree", "DecisionTreeRegressor"),
        "SVR, linear": _made("svm", "SVR", is_random=False, kernel="linear"),
        "SVR, polynomial": _made("svm", "SVR", is_random=False, kernel="poly"),
        "SVR, RBF": _made("svm", "SVR", is_random=False, kernel="rbf"),
        "ARD": _made("linear_model", "ARDRegression", is_random=False),
        "MLP, sgd": _made("neural_network", "MLPRegressor", solver="sgd"),
        "MLP, lbfgs": _made("neural_network", "MLPRegressor", solver="lbfgs"),
        "MLP, adam": _made("neural_network", "MLPRegressor", solver="adam"),
    }
)
"""By name: what makes one from a seed. Ten families; the first five are the columns of the paper's Table IV."""


def make_estimator(name: str, seed: int) -> Estimator:
    """A regressor that first brings features and times to mean 0 and variance 1.

    Times in seconds are so small that what scikit-learn takes for close would be everything.
    """
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), ESTIMATORS[name](seed))
    return TransformedTargetRegressor(regressor=pipeline, transformer=StandardScaler())
