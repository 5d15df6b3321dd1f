"""Every way of placing, by name, behind one signature."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from bow.errors import SettingError
from bow.planning.placement.baselines import expert, metis, mincut, scotch
from bow.planning.placement.controllers import train_policy_asynchronously
from bow.planning.placement.evaluation import SearchBudget, SimulatedEvaluator
from bow.planning.placement.groups import Devices, Groups
from bow.planning.placement.policy import PolicySettings
from bow.planning.placement.reinforce import LearningSettings
from bow.planning.placement.training import LearnedPlacement, PolicyProgress, train_policy
from bow.planning.placement.walking import walk_from_several
from bow.planning.problem.partition import Split
from bow.planning.search.search import search
from bow.planning.search.search_settings import SearchSettings

Say: TypeAlias = Callable[[str], None]  # called with a line of progress

SHORT = LearningSettings(
    samples=20,
    learning_rate=0.01,
    decay=1.0,
    failing_s=None,
    mask_failures_after=200,
    is_scaled=True,
    noise=0.0,
    exploring=0.5,
    random_choices=2.0,
    entropy=0.03,
    entropy_after=0.03,
    least_entropy=5.0,
    elites=10,
)
"""For the thousands of placements that a search on one machine looks at, where the paper's controllers looked at many
times as many: the best ones are repeated, and advantages are of one size whatever the network."""

SIZES = PolicySettings(hidden=64, kind_size=16, attention=32, aligned=True, additive=False, stay=4.0)

MOST_UPDATES = 10_000  # Of a training that ends by its seconds, which come earlier


@dataclass(frozen=True)
class PlacementResult:
    """What a method found."""

    splits: tuple[Split, ...]  # by operator
    devices: Devices | None = None  # by group; None where operators are split over several devices
    # By group: what a policy decodes greedily when it is trained; None: there is no policy.
    greedy: Devices | None = None


class Method(Protocol):
    """A way of placing."""

    def __call__(
        self, groups: Groups, evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Say
    ) -> PlacementResult:
        """Place groups on devices."""


def place(
    method: str,
    groups: Groups,
    evaluator: SimulatedEvaluator,
    budget: SearchBudget,
    seed: int = 0,
    say: Say = lambda message: None,
) -> PlacementResult:
    """Place groups on devices by a method."""
    if method not in METHODS:
        raise SettingError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return METHODS[method](groups, evaluator, budget, seed, say)


def learned(
    groups: Groups, evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Say
) -> PlacementResult:
    """The best placement that a policy drew while it learned; it neither sees nor starts from other methods' ones."""
    found = learn(groups, evaluator, budget, seed, say)
    return PlacementResult(groups.splits(found.best.placement), found.best.placement, found.greedy)


def learn(
    groups: Groups,
    evaluator: SimulatedEvaluator,
    budget: SearchBudget,
    seed: int = 0,
    say: Say = lambda message: None,
    settings: LearningSettings = SHORT,
    sizes: PolicySettings = SIZES,
) -> LearnedPlacement:
    """Train a policy within a budget."""
    best: list[float] = []

    def watch(progress: PolicyProgress) -> None:
        found = progress.best
        if found is not None and (not best or found.time_s < best[-1]):
            best.append(found.time_s)
            say(f"{found.time_s:.4f} s at sample {found.sample}")

    updates = MOST_UPDATES
    if budget.placements is not None:
        settings = replace(settings, samples=min(settings.samples, budget.placements))
        updates = budget.placements // settings.samples
    operations = groups.operations(evaluator.num_devices, evaluator.allowed if evaluator.on_processor else ())
    train = train_policy
    if budget.workers:
        train = functools.partial(train_policy_asynchronously, controllers=budget.workers)
    return train(
        operations,
        evaluator,
        updates=updates,
        settings=settings,
        sizes=sizes,
        seed=seed,
        budget_s=budget.seconds,
        watch=watch,
    )


def _placement(find: Callable[[SimulatedEvaluator, int], Devices]) -> Method:
    """A method that needs no search."""

    def method(
        groups: Groups, evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Say
    ) -> PlacementResult:
        devices = find(evaluator, seed)
        return PlacementResult(groups.splits(devices), devices)

    return method


def _processor(evaluator: SimulatedEvaluator, seed: int) -> Devices:
    if not evaluator.processors:
        raise SettingError("there is no processor among the devices; leave out the method cpu")
    return (evaluator.processors[0],) * len(evaluator.groups)


def _walked(
    groups: Groups, evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Say
) -> PlacementResult:
    devices = walk_from_several(evaluator, budget, seed, say)
    return PlacementResult(groups.splits(devices), devices)


def _planned(
    groups: Groups, evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Say
) -> PlacementResult:
    """The planner's search: all splits, not placements alone."""
    of_walk = budget.part(len(SearchSettings().starts))  # seconds are of all walks together, proposals of each
    settings = SearchSettings(
        budget_s=budget.seconds,
        proposals=of_walk.placements,
        seed=seed,
        patience=None,
        descend=budget.placements is None,
    )
    found = search(evaluator.problem, settings)
    say(f"{found.makespan_ns / 1e9:.4f} s after {found.evaluated} partitions")
    return PlacementResult(found.partition.splits)


METHODS: Mapping[str, Method] = {
    "cpu": _placement(_processor),
    "gpu": _placement(lambda evaluator, seed: evaluator.legal((evaluator.accelerators[0],) * len(evaluator.groups))),
    "scotch": _placement(lambda evaluator, seed: scotch(evaluator)),
    "mincut": _placement(lambda evaluator, seed: mincut(evaluator)),
    "metis": _placement(metis),
    "expert": _placement(lambda evaluator, seed: expert(evaluator)),
    "learned": learned,
    "mcmc": _walked,
    "soap": _planned,
}
"""By name: processor alone, accelerator alone, Scotch with and without processors, METIS, the expert, the policy,
Metropolis's walk over placements, and over all partitions of the planner."""

SEARCHES = frozenset({"learned", "mcmc", "soap"})  # The methods that spend the budget
