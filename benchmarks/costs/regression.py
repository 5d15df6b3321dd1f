"""Regressions of operator times, and their accuracy for an unseen network (Table IV)."""

import importlib
import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.costs.climbing import accuracy, r_squared
from benchmarks.costs.machine import Saturation, Threads, Work, evenly, placements

INSTRUCTIONS = "instructions"  # all other events are divided by this one

LINE_BYTES, VECTOR_BYTES, FLOAT_BYTES = 64, 64, 4

CLOCK_HZ, CACHE_BYTES = 1.4e9, 2**20


@dataclass(frozen=True)
class Sample:
    """A measurement of an operator in one case, as input of a regression.

    Attributes:
        time_s: duration.
        events: counts by name; includes `instructions`.

    Example:
        >>> Sample(1e-3, {"instructions": 2e6, "cycles": 3e6}).normalised()
        {'cycles': 1.5}
    """

    time_s: float
    events: Mapping[str, float]

    def normalised(self) -> dict[str, float]:
        """Return the events per instruction, so that operators of any size can be compared."""
        instructions = self.events[INSTRUCTIONS]
        return {name: count / instructions for name, count in self.events.items() if name != INSTRUCTIONS}


def computed_events(work: Work, case: Threads, time_s: float) -> dict[str, float]:
    """Substitutes for hardware counters, computed from an operator's work and its measured time.

    They have the names of counters, for cores with 64-byte vectors: `instructions` are multiply-adds, loads and stores
    of vectors; `cycles` the time of threads at 1.4 GHz; `cache_accesses` the cache lines moved; `cache_misses` those
    beyond the size of caches in use (1 MiB each); `l1_hits` the arithmetic operands for which no line is fetched.
    `flops` and `bytes` are unchanged. Unlike counters, they are exact.

    Example:
        >>> events = computed_events(Work("aten.mm.default", 6.4e9, 6.4e7), Threads(2), 1e-2)
        >>> sorted(events)
        ['bytes', 'cache_accesses', 'cache_misses', 'cycles', 'flops', 'instructions', 'l1_hits']
        >>> events["cycles"], events["cache_accesses"]
        (28000000.0, 1000000.0)
    """
    lines = work.bytes_moved / LINE_BYTES
    vectors = VECTOR_BYTES / FLOAT_BYTES
    caches = -(-case.threads // 2) if case.shared else case.threads
    return {
        INSTRUCTIONS: max(1.0, work.flops / (2 * vectors) + work.bytes_moved / VECTOR_BYTES),
        "cycles": time_s * CLOCK_HZ * case.threads,
        "cache_accesses": lines,
        "cache_misses": max(0.0, lines - caches * CACHE_BYTES / LINE_BYTES),
        "l1_hits": max(0.0, work.flops / vectors - lines),
        "flops": work.flops,
        "bytes": work.bytes_moved,
    }


Estimator: TypeAlias = Any  # a scikit-learn regressor

Profile: TypeAlias = Mapping[Threads, Sample]
"""Samples of an operator, by case."""


Rows: TypeAlias = NDArray[np.float64]


class Regression:
    """Predicts the time of an operator in every case from its samples in a few.

    Each case has its own regression. Its features are, for each sample case, the time and the most important
    performance events per instruction; the importances are those of a decision tree that predicts times.
    Predictions are at least the shortest time of the training set, so they are positive.

    Example:
        >>> model = Regression("ordinary least squares", samples=[Threads(1)], num_events=1)
        >>> profiles = {name: {Threads(1): Sample(t, {"instructions": 1.0, "cycles": t})} for name, t in
        ...             [("small", 1.0), ("medium", 2.0), ("large", 4.0)]}
        >>> model.fit(profiles, {name: {Threads(2): seen[Threads(1)].time_s / 2} for name, seen in profiles.items()})
        >>> model.times_s([{Threads(1): Sample(3.0, {"instructions": 1.0, "cycles": 3.0})}], Threads(2))
        [1.5]

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, section III-B, Table IV.
    """

    def __init__(self, family: str, samples: Sequence[Threads], num_events: int = 4, seed: int = 0) -> None:
        self.family = family
        self.samples = tuple(samples)
        self.events: tuple[str, ...] = ()
        self._num_events = num_events
        self._seed = seed
        self._estimators: dict[Threads, Estimator] = {}
        self._least_s = 0.0

    def fit(self, profiles: Mapping[str, Profile], times: Mapping[str, Mapping[Threads, float]]) -> None:
        """Fit the regressions to operators with known times."""
        operators = sorted(profiles)
        cases = sorted(times[operators[0]])
        known = np.array([[times[operator][case] for case in cases] for operator in operators])
        self.events = select_events([profiles[o] for o in operators], self.samples, known, self._num_events, self._seed)
        features = self._features([profiles[operator] for operator in operators])
        self._least_s = float(known.min())
        self._estimators = {case: self._fitted(features, known[:, index]) for index, case in enumerate(cases)}

    def times_s(self, profiles: Sequence[Profile], case: Threads) -> list[float]:
        """Predict the seconds of several operators in a case."""
        predicted = self._estimators[case].predict(self._features(profiles))
        return [float(value) for value in np.maximum(predicted, self._least_s)]

    def _fitted(self, features: Rows, seconds: Rows) -> Estimator:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        estimator = make_estimator(self.family, self._seed)
        # One thread: the order of sums influences the weights, and more threads are slower for so few samples.
        # Regressions that do not converge are compared as they are.
        with threadpool_limits(1), warnings.catch_warnings(action="ignore"):
            estimator.fit(features, seconds)
        return estimator

    def _features(self, profiles: Sequence[Profile]) -> Rows:
        return np.array([_row(profile, self.samples, self.events) for profile in profiles])


def select_events(
    profiles: Sequence[Profile], samples: Sequence[Threads], seconds: Rows, count: int, seed: int = 0
) -> tuple[str, ...]:
    """Select the most important events for predicting times, by a decision tree.

    The tree predicts the times of all cases from the events per instruction of all sample cases; an
    event's importance is the sum over sample cases. Ties are broken by name.
    """
    from sklearn.tree import DecisionTreeRegressor

    names = sorted(profiles[0][samples[0]].normalised())
    features = np.array([_row(profile, samples, names) for profile in profiles])
    tree = DecisionTreeRegressor(random_state=seed).fit(features, seconds)
    by_sample = tree.feature_importances_.reshape(len(samples), 1 + len(names))
    importance = dict(zip(names, by_sample[:, 1:].sum(axis=0), strict=True))
    return tuple(sorted(sorted(names, key=lambda name: (-importance[name], name))[:count]))


def _row(profile: Profile, samples: Sequence[Threads], events: Sequence[str]) -> Rows:
    numbers: list[float] = []
    for case in samples:
        normalised = profile[case].normalised()
        numbers += [profile[case].time_s, *(normalised[name] for name in events)]
    return np.array(numbers)


SUBSETS = 300
"""Subsets of the samples in Theil-Sen; the default of up to ten thousand would take minutes."""


def _made(module: str, name: str, is_random: bool = True, **settings: Any) -> Callable[[int], Estimator]:
    """Return a factory of a scikit-learn estimator; the module is imported when it is called."""

    def make(seed: int) -> Estimator:
        chosen = getattr(importlib.import_module(f"sklearn.{module}"), name)
        return chosen(**settings, **({"random_state": seed} if is_random else {}))

    return make


def _passive_aggressive(seed: int) -> Estimator:
    import sklearn

    if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8):
        return _made("linear_model", "PassiveAggressiveRegressor")(seed)
        # Its own class is deprecated.
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
"""Factories by name, called with a seed. Ten families; the first five are the columns of the paper's Table IV."""


def make_estimator(name: str, seed: int) -> Estimator:
    """A regressor that standardises features and times to mean 0 and variance 1.

    Times in seconds are smaller than the default tolerances of scikit-learn.
    """
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), ESTIMATORS[name](seed))
    return TransformedTargetRegressor(regressor=pipeline, transformer=StandardScaler())


# Run numbers: samples for a model and times for its test are separate measurements
SAMPLED, UNSEEN = 0, 1


MISCOUNT = 0.5  # standard deviation of the logarithm of counts, to study inaccurate counters


@dataclass(frozen=True)
class Operators:
    """Measurements of operators on a machine."""

    profiles: Mapping[str, Profile]  # by operator: samples for a regression
    times: Mapping[str, Mapping[Threads, float]]  # by operator: seconds by case, from other runs

    def actual(self, case: Threads) -> list[float]:
        """Return the seconds of all operators in a case."""
        return [times[case] for times in self.times.values()]


def run_all(
    machine: Saturation,
    works: Mapping[str, Work],
    samples: Sequence[Threads],
    cases: Sequence[Threads],
    miscount: float = 0,
) -> Operators:
    draws = random.Random(machine.seed)

    def seconds(work: Work, case: Threads, run: int) -> float:
        return machine.time_s(work.flops, work.bytes_moved, work.kind, case, run)

    def sample(work: Work, case: Threads) -> Sample:
        taken = seconds(work, case, SAMPLED)
        events = computed_events(work, case, taken)
        return Sample(taken, {name: many * math.exp(draws.gauss(0.0, miscount)) for name, many in events.items()})

    profiles = {name: {case: sample(work, case) for case in samples} for name, work in works.items()}
    times = {name: {case: seconds(work, case, UNSEEN) for case in cases} for name, work in works.items()}
    return Operators(profiles, times)


def compare_families(
    machine: Saturation,
    seen: Mapping[str, Work],
    unseen: Mapping[str, Work],
    *,
    families: Sequence[str],
    samples: Sequence[int],
    num_cases: int,
    seed: int,
    miscount: float = 0.0,
) -> dict[str, Any]:
    """Return accuracy and R2 for unseen operators, by number of samples and family."""
    all_lanes = placements(machine.cores)
    cases = evenly(all_lanes, num_cases)
    found = {}
    for count in samples:
        chosen = evenly(all_lanes, count)
        training, test = (run_all(machine, works, chosen, cases, miscount) for works in (seen, unseen))
        found[str(count)] = {family: score_family(family, training, test, chosen, seed) for family in families}
    return found


def score_family(
    family: str, training: Operators, test: Operators, samples: Sequence[Threads], seed: int = 0
) -> dict[str, Any]:
    """Train one regression, and test it on unseen operators."""
    model = Regression(family, samples, seed=seed)
    model.fit(training.profiles, training.times)
    cases = list(next(iter(test.times.values())))
    profiles = list(test.profiles.values())
    predicted = [seconds for case in cases for seconds in model.times_s(profiles, case)]
    actual = [seconds for case in cases for seconds in test.actual(case)]
    return {
        "accuracy": round(accuracy(predicted, actual), 4),
        "r_squared": round(r_squared(predicted, actual), 4),
        "events": model.events,
    }
