"""All placement methods, by name, with one signature."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from bow.errors import ScheduleError, SettingError
from bow.planning.placement.baselines import expert, metis, scotch
from bow.planning.placement.groups import Devices, SearchBudget, SimulatedEvaluator
from bow.planning.placement.training import LearningSettings, SampledPlacements, TrainingState, train_policy
from bow.planning.problem.partition import Split
from bow.planning.search.metropolis import Limits, metropolis
from bow.planning.search.proposals import P_SINGLE_OF_FAMILY, Changes
from bow.seeds import derive_seed

ATTEMPTS = 100  # random placements drawn to find one that fits
MOST_UPDATES = 10_000  # of a training that its time budget ends earlier

Report: TypeAlias = Callable[[str], None]  # called with a line of progress


@dataclass(frozen=True)
class PlacementResult:
    """Result of a placement method."""

    splits: tuple[Split, ...]  # by operator
    devices: Devices | None = None  # by group; None if operators are split over several devices
    # By group: the trained policy's greedy placement; None: no policy.
    greedy: Devices | None = None


Method: TypeAlias = Callable[[SimulatedEvaluator, SearchBudget, int, Report], PlacementResult]
"""Places the groups of an evaluator, given budget, seed and progress output."""


class GroupProposals:
    """Symmetric proposals: a group, or all groups of its layer on the same device, move to another device."""

    def __init__(self, evaluator: SimulatedEvaluator, source: random.Random) -> None:
        self._evaluator, self._groups, self._source = evaluator, evaluator.groups.groups, source
        self._layers = defaultdict[str, list[int]](list)
        for number, group in enumerate(self._groups):
            self._layers[group.layer].append(number)

    def draw(self, splits: Sequence[Split]) -> Changes:
        group = self._source.choice(range(len(self._groups)))
        device = self._source.choice(range(self._evaluator.num_devices))
        before = self._device(group, splits)
        if device == before:
            return ()
        # Moving a single cell of an unrolled layer requires a copy of the layer's weights; so whole layers move as
        # well.
        layer = self._layers[self._groups[group].layer]
        if len(layer) == 1 or self._source.random() < P_SINGLE_OF_FAMILY:
            return self._moved([group], device)
        devices = {number: self._device(number, splits) for number in layer}
        if device in devices.values():
            return ()
        return self._moved([number for number in layer if devices[number] == before], device)

    def _device(self, group: int, splits: Sequence[Split]) -> int:
        return splits[self._groups[group].operators[0]].devices[0]

    def _moved(self, groups: Sequence[int], device: int) -> Changes:
        operators = (operator for number in groups for operator in self._groups[number].operators)
        return tuple((operator, self._evaluator.whole_on[device][operator]) for operator in operators)


def multi_start_metropolis(evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Report) -> Devices:
    """Return the best placement of walks from a single accelerator, the expert's and a random placement."""
    # Starts that do not fit are skipped; if none fits, all groups on a processor. Ctrl-C ends the search.
    starts = dict(_starts(evaluator, random.Random(derive_seed(seed, 2))))
    if not starts:
        raise ScheduleError(
            "no starting placement fits into the devices' memory; use a smaller batch, or more devices or memory"
        )
    part, found = budget.part(len(starts)), []
    for number, (name, start) in enumerate(starts.items()):
        own = derive_seed(seed, number)
        walked = metropolis(
            evaluator.problem.simulation(evaluator.groups.splits(start)),
            GroupProposals(evaluator, random.Random(derive_seed(own, 0))),
            Limits(part.seconds, part.placements, patience=None),
            random.Random(derive_seed(own, 1)),
        )
        devices = tuple(walked.splits[group.operators[0]].devices[0] for group in evaluator.groups.groups)
        found.append((walked.makespan_ns, devices))
        say(f"from {name}: {walked.makespan_ns / 1e9:.4f} s after {walked.evaluated} placements")
        if walked.ending == "interrupted":
            break
    return min(found)[1]


def _starts(evaluator: SimulatedEvaluator, source: random.Random) -> Iterator[tuple[str, Devices]]:
    fits = False
    find: Mapping[str, Callable[[], Devices]] = {
        "single": lambda: evaluator.all_on(evaluator.accelerators[0]),
        "expert": lambda: expert(evaluator),
        "random": lambda: _random(evaluator, source),
    }
    for name, placed in find.items():
        placement = placed()
        if evaluator.seconds(placement) is not None:
            fits = True
            yield name, placement
    processor = evaluator.all_on((evaluator.processors or evaluator.accelerators)[0])
    if not fits and evaluator.seconds(processor) is not None:
        yield "processor", processor


def _random(evaluator: SimulatedEvaluator, source: random.Random) -> Devices:
    for _ in range(ATTEMPTS):
        placement = tuple(source.choice(range(evaluator.num_devices)) for _ in range(len(evaluator.groups)))
        if evaluator.seconds(placement) is not None:
            break
    return placement


def _learned(evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Report) -> PlacementResult:
    """Return the fastest of: the policy's best sample, its greedy placement, everything on one device."""
    best: list[float] = []

    def watch(state: TrainingState, _: SampledPlacements) -> None:
        found = state.best
        if found is not None and (not best or found.time_s < best[-1]):
            best.append(found.time_s)
            say(f"{found.time_s:.4f} s at sample {found.sample}")

    updates, settings = MOST_UPDATES, LearningSettings()
    if budget.placements is not None:
        settings = replace(settings, samples=min(settings.samples, max(1, budget.placements)))
        updates = budget.placements // settings.samples
    found = train_policy(
        evaluator.groups.operations(evaluator.num_devices),
        evaluator,
        updates=updates,
        settings=settings,
        seed=seed,
        budget_s=budget.seconds,
        controllers=budget.workers,
        watch=watch,
    )
    return replace(_placed(evaluator, _fastest(evaluator, found.best.placement, found.greedy)), greedy=found.greedy)


def _fastest(evaluator: SimulatedEvaluator, *found: Devices) -> Devices:
    """Return the fastest of some placements and of everything on one device of each kind."""
    others = map(evaluator.all_on, evaluator.problem.topology.of_each_kind)
    times = ((evaluator.seconds(each), each) for each in (*found, *others))
    return min((seconds, each) for seconds, each in times if seconds is not None)[1]


def _placed(evaluator: SimulatedEvaluator, devices: Devices) -> PlacementResult:
    return PlacementResult(evaluator.groups.splits(devices), devices)


def _without_search(find: Callable[[SimulatedEvaluator, int], Devices]) -> Method:
    return lambda evaluator, budget, seed, say: _placed(evaluator, find(evaluator, seed))


def _processor(evaluator: SimulatedEvaluator, seed: int) -> Devices:
    if not evaluator.processors:
        raise SettingError("the topology has no CPU device; leave out the method cpu")
    return evaluator.all_on(evaluator.processors[0])


METHODS: Mapping[str, Method] = {
    "cpu": _without_search(_processor),
    "gpu": _without_search(lambda evaluator, seed: evaluator.all_on(evaluator.accelerators[0])),
    "scotch": _without_search(lambda evaluator, seed: scotch(evaluator)),
    "mincut": _without_search(lambda evaluator, seed: scotch(evaluator, evaluator.accelerators)),
    "metis": _without_search(metis),
    "expert": _without_search(lambda evaluator, seed: expert(evaluator)),
    "learned": _learned,
    "mcmc": lambda evaluator, budget, seed, say: _placed(
        evaluator, _fastest(evaluator, multi_start_metropolis(evaluator, budget, seed, say))
    ),
}
"""`mincut` is Scotch without processors; `mcmc` is the Metropolis search over placements."""
