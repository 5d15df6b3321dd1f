"""The regression models that Liu et al. compared, as scikit-learn has them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

Estimator: TypeAlias = Any
"""A scikit-learn regressor."""

SUBSETS = 300
"""So many subsets of the samples are solved by Theil-Sen; by default it would be up to ten thousand, for minutes."""


def _random_forest(seed: int) -> Estimator:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(random_state=seed)


def _neighbours(seed: int) -> Estimator:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor()


def _gradient_boosting(seed: int) -> Estimator:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(random_state=seed)


def _support_vectors(kernel: str) -> Callable[[int], Estimator]:
    def make(seed: int) -> Estimator:
        from sklearn.svm import SVR

        return SVR(kernel=kernel)

    return make


def _decision_tree(seed: int) -> Estimator:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(random_state=seed)


def _relevance(seed: int) -> Estimator:
    from sklearn.linear_model import ARDRegression

    return ARDRegression()


def _least_squares(seed: int) -> Estimator:
    from sklearn.linear_model import LinearRegression

    return LinearRegression()


def _passive_aggressive(seed: int) -> Estimator:
    import sklearn

    if tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 8):  # where its own class is deprecated
        from sklearn.linear_model import SGDRegressor

        return SGDRegressor(loss="epsilon_insensitive", penalty=None, learning_rate="pa1", eta0=1.0, random_state=seed)
    from sklearn.linear_model import PassiveAggressiveRegressor

    return PassiveAggressiveRegressor(random_state=seed)


def _perceptron(solver: str) -> Callable[[int], Estimator]:
    def make(seed: int) -> Estimator:
        from sklearn.neural_network import MLPRegressor

        return MLPRegressor(solver=solver, random_state=seed)

    return make


def _theil_sen(seed: int) -> Estimator:
    from sklearn.linear_model import TheilSenRegressor

    return TheilSenRegressor(max_subpopulation=SUBSETS, random_state=seed)


ESTIMATORS: Mapping[str, Callable[[int], Estimator]] = MappingProxyType(
    {
        "gradient boosting": _gradient_boosting,
        "k-neighbours": _neighbours,
        "Theil-Sen": _theil_sen,
        "ordinary least squares": _least_squares,
        "passive aggressive": _passive_aggressive,
        "random forest": _random_forest,
        "decision tree": _decision_tree,
        "SVR, linear": _support_vectors("linear"),
        "SVR, polynomial": _support_vectors("poly"),
        "SVR, RBF": _support_vectors("rbf"),
        "ARD": _relevance,
        "MLP, sgd": _perceptron("sgd"),
        "MLP, lbfgs": _perceptron("lbfgs"),
        "MLP, adam": _perceptron("adam"),
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
