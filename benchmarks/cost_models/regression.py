"""Regressions from operators to operators, with the models that Liu et al. compared, as scikit-learn has them."""

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.cost_models.climbing import Threads
from benchmarks.cost_models.events import Sample
from bow.errors import SettingError

Estimator: TypeAlias = Any  # a scikit-learn regressor
Profile: TypeAlias = Mapping[Threads, Sample]
"""What an operator was seen to do, by sample case."""

Rows: TypeAlias = NDArray[np.float64]


class Regression:
    """Predicts the time of an operator in every case from its samples in a few.

    Each case has a regression of its own. Its features are, for each sample case, the time and the most telling
    performance events for each instruction; a decision tree that predicts times says by its importances which those
    are. A prediction is never below the shortest time that was seen in training: no operator takes less than nothing.

    Example:
        >>> model = Regression("ordinary least squares", samples=[Threads(1)], num_events=1)
        >>> profiles = {name: {Threads(1): Sample(t, {"instructions": 1.0, "cycles": t})} for name, t in
        ...             [("small", 1.0), ("medium", 2.0), ("large", 4.0)]}
        >>> model.fit(profiles, {name: {Threads(2): seen[Threads(1)].time_s / 2} for name, seen in profiles.items()})
        >>> model.observe("new", {Threads(1): Sample(3.0, {"instructions": 1.0, "cycles": 3.0})})
        >>> round(model.time_s("new", Threads(2)), 6)
        1.5

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, section III-B, Table IV.
    """

    def __init__(self, family: str, samples: Sequence[Threads], num_events: int = 4, seed: int = 0) -> None:
        if family not in ESTIMATORS:
            raise SettingError(f"family must be one of {', '.join(ESTIMATORS)}, got {family!r}")
        if not samples or num_events < 1:
            raise SettingError(f"samples and num_events must be at least 1, got {len(samples)} and {num_events}")
        self.family = family
        self.samples = tuple(samples)
        self.events: tuple[str, ...] = ()
        self._num_events = num_events
        self._seed = seed
        self._estimators: dict[Threads, Estimator] = {}
        self._profiles: dict[str, Profile] = {}
        self._least_s = 0.0

    def fit(self, profiles: Mapping[str, Profile], times: Mapping[str, Mapping[Threads, float]]) -> None:
        """Learn from operators whose times are known."""
        operators = sorted(profiles)
        if not operators or any(operator not in times for operator in operators):
            raise SettingError(f"times of {len(times)} operators for {len(operators)} profiles; give every one both")
        cases = sorted(times[operators[0]])
        if any(sorted(times[operator]) != cases for operator in operators):
            raise SettingError("all operators must have times in the same cases; leave out the others")
        known = np.array([[times[operator][case] for case in cases] for operator in operators])
        self.events = select_events([profiles[o] for o in operators], self.samples, known, self._num_events, self._seed)
        features = self._features([profiles[operator] for operator in operators])
        self._least_s = float(known.min())
        self._estimators = {case: self._fitted(features, known[:, index]) for index, case in enumerate(cases)}
        self._profiles = {}

    def observe(self, operator: str, profile: Profile) -> None:
        """Tell what an operator was seen to do, before its time is asked for."""
        self._profiles[operator] = profile

    def time_s(self, operator: str, case: Threads) -> float:
        """Seconds by the case's regression."""
        if operator not in self._profiles:
            raise SettingError(f"{operator!r} was not observed; tell its samples first")
        return self.times_s([self._profiles[operator]], case)[0]

    def times_s(self, profiles: Sequence[Profile], case: Threads) -> list[float]:
        """Seconds of several operators at once."""
        if case not in self._estimators:
            raise SettingError(f"no regression was fitted for {case}; give its times to `fit`")
        predicted = self._estimators[case].predict(self._features(profiles))
        return [float(value) for value in np.maximum(predicted, self._least_s)]

    def _fitted(self, features: Rows, seconds: Rows) -> Estimator:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        estimator = make_estimator(self.family, self._seed)
        # One thread: sums in another order end in other weights, and for so few samples several are slower.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # regressions that stop before they converge are compared as they are
            estimator.fit(features, seconds)
        return estimator

    def _features(self, profiles: Sequence[Profile]) -> Rows:
        return np.array([_row(profile, self.samples, self.events) for profile in profiles])


def select_events(
    profiles: Sequence[Profile], samples: Sequence[Threads], seconds: Rows, count: int, seed: int = 0
) -> tuple[str, ...]:
    """The events that tell most about times: those with the largest importances in a decision tree.

    The tree predicts the times of all cases from the events of all sample cases, each for each instruction; an
    event's importance is the sum over sample cases. Of equals, the first by name is taken.
    """
    from sklearn.tree import DecisionTreeRegressor

    names = sorted(_sample(profiles[0], samples[0]).normalised())
    if any(sorted(_sample(each, case).normalised()) != names for each in profiles for case in samples):
        raise SettingError(f"all samples must have the events {', '.join(names)}; count the same everywhere")
    features = np.array([_row(profile, samples, names) for profile in profiles])
    tree = DecisionTreeRegressor(random_state=seed).fit(features, seconds)
    by_sample = tree.feature_importances_.reshape(len(samples), 1 + len(names))
    importance = dict(zip(names, by_sample[:, 1:].sum(axis=0), strict=True))
    return tuple(sorted(sorted(names, key=lambda name: (-importance[name], name))[:count]))


def _row(profile: Profile, samples: Sequence[Threads], events: Sequence[str]) -> Rows:
    numbers: list[float] = []
    for case in samples:
        sample = _sample(profile, case)
        normalised = sample.normalised()
        numbers += [sample.time_s, *(normalised[name] for name in events)]
    return np.array(numbers)


def _sample(profile: Profile, case: Threads) -> Sample:
    if case not in profile:
        raise SettingError(f"a profile has no sample with {case}; sample every operator in the same cases")
    return profile[case]


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
