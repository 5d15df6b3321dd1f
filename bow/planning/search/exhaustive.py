"""Branch and bound over all partitions: the fastest one with a proof, or the largest possible gap to it."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from bow.errors import ScheduleError
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Split
from bow.planning.search.lower_bounds import Prefix, StepBounds
from bow.planning.search.metropolis import ProgressCallback
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.step_model import StepModel

Permutation = tuple[int, ...]  # by device: the device that replaces it


def symmetries(topology: DeviceTopology) -> Iterator[Permutation]:
    """Yield the device permutations that preserve device kinds, and routes with the channels they share."""
    # A partition on permuted devices takes the same time, except where ties are broken by device number.
    return _extended(topology, (), {})


def permuted(split: Split, permutation: Permutation) -> Split:
    return Split(split.degrees, tuple(permutation[device] for device in split.devices))


def _extended(topology: DeviceTopology, permutation: Permutation, channels: dict[int, int]) -> Iterator[Permutation]:
    device = len(permutation)
    if device == topology.num_devices:
        yield permutation
        return
    for place in range(topology.num_devices):
        if place in permutation or topology.devices[place].kind != topology.devices[device].kind:
            continue
        longer = (*permutation, place)
        found = _channels(topology, longer, channels)
        if found is not None:
            yield from _extended(topology, longer, found)


def _channels(topology: DeviceTopology, permutation: Permutation, known: dict[int, int]) -> dict[int, int] | None:
    """Extend the channel mapping by the routes of the last device; None: inconsistent."""
    channels = dict(known)
    last = len(permutation) - 1
    for other in range(last):
        for a, b in ((last, other), (other, last)):
            old, new = topology.route(a, b), topology.route(permutation[a], permutation[b])
            if len(old) != len(new):
                return None
            for one, another in zip(old, new, strict=True):
                first, second = topology.channels[one], topology.channels[another]
                if channels.setdefault(one, another) != another or replace(first, name=second.name) != second:
                    return None
    return channels if len(set(channels.values())) == len(channels) else None


Evaluate: TypeAlias = Callable[[Sequence[Split], int | None], int | None]
"""Return the makespan in ns for splits and a limit in ns; exact if below the limit; None: does not fit."""

PASSES = 8  # deepening steps of the threshold from the lower bound to the best known time


@dataclass(frozen=True)
class Proof:
    """Result of a branch-and-bound search."""

    splits: tuple[Split, ...]  # of the fastest known partition, by operator
    makespan_ns: int
    bound_ns: int  # lower bound over all partitions; 0: interrupted before one was known
    partitions: int  # size of the search space
    symmetries: int  # topology-preserving device permutations; one partition per equivalence class is examined
    prefixes: int  # search nodes: partial partitions whose extensions were bounded
    evaluated: int
    seconds: float
    is_complete: bool

    @property
    def gap(self) -> float:
        """Largest possible relative improvement of the partition found; 0: it is optimal."""
        return 1 - self.bound_ns / self.makespan_ns if self.makespan_ns else 0.0


class _SearchStoppedError(Exception):
    """The budget is spent, or the callback ended the search."""


class ExhaustiveSearch:
    """Search for the fastest partition, or for a bound of the possible improvement over the best known one."""

    # Depth first with iterative deepening: the threshold rises to the best known time, and every threshold whose pass
    # completes is a lower bound. Korf: Depth-first iterative-deepening, an optimal admissible tree search, 1985.

    def __init__(
        self,
        model: StepModel,
        space: SplitSpace,
        evaluate: Evaluate,
        *,
        start: Sequence[Split] | None = None,
        budget_s: float | None = None,
        prune: bool = True,
        watch: ProgressCallback | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._begun, self._clock, self._budget_s, self._watch = clock(), clock, budget_s, watch
        self._model, self._space, self._evaluate, self._prune = model, space, evaluate, prune
        known = None if start is None else evaluate(start, None)
        self._best = None if start is None or known is None else tuple(start)
        self._makespan: float = math.inf if known is None else known
        self._options: list[list[Split]] = []
        self._image_tables: list[list[list[int]]] = []
        self._prefixes = self._evaluated = 0
        self._proven_bound_ns: float = 0.0
        self._threshold_ns: float = 0.0

    def run(self) -> Proof:
        is_complete = True
        try:
            self._prepare()
            for threshold in self._thresholds():
                self._threshold_ns = threshold
                self._search_below(self._bounds.empty_prefix(), [*range(len(self._image_tables))])
                self._proven_bound_ns = min(threshold, self._makespan)
                if self._proven_bound_ns == self._makespan:
                    break
        except (_SearchStoppedError, KeyboardInterrupt):
            is_complete = False
        seconds = self._clock() - self._begun
        if self._best is None and not is_complete:
            raise ScheduleError(
                "the search ended before it found a partition that fits into memory; increase budget_s or pass a start"
            )
        if self._best is None:
            raise ScheduleError(
                "none of the examined partitions fits into the devices' memory; use more devices or memory"
            )
        return Proof(
            self._best,
            int(self._makespan),
            int(self._proven_bound_ns),
            self._space.num_partitions,
            1 + len(self._image_tables),
            self._prefixes,
            self._evaluated,
            seconds,
            is_complete,
        )

    def _prepare(self) -> None:
        """Build the bounds' tables, which may take longer than the budget."""
        for operator in range(self._space.num_operators):
            self._check()
            self._options.append(list(self._space.splits(operator)))
        self._bounds = StepBounds(self._model, self._options, self._check)
        self._image_tables = list(_image_tables(self._model, self._options, self._check))

    def _check(self) -> None:
        seconds, best_ns = self._clock() - self._begun, 0 if self._best is None else int(self._makespan)
        if self._budget_s is not None and seconds >= self._budget_s:
            raise _SearchStoppedError
        if self._watch is not None and not self._watch(seconds, self._prefixes, best_ns):
            raise _SearchStoppedError

    def _thresholds(self) -> Iterator[float]:
        """Yield the increasing thresholds; each pass examines all partitions below its threshold."""
        self._proven_bound_ns = int(self._bounds.extensions(self._bounds.empty_prefix()).bounds_ns.min())
        lowest = self._proven_bound_ns
        if self._prune and self._makespan < math.inf:
            yield from (lowest + (self._makespan - lowest) * step / PASSES for step in range(1, PASSES))
        yield math.inf

    def _search_below(self, prefix: Prefix, permutations: Sequence[int]) -> None:
        """Examine a prefix's extensions below the threshold, except those that are permutations of earlier ones."""
        self._prefixes += 1
        self._check()
        operator = len(prefix.options)
        extensions = self._bounds.extensions(prefix)
        for option in map(int, np.argsort(extensions.bounds_ns, kind="stable")):
            bound = extensions.bounds_ns[option]
            if self._prune and bound >= min(self._threshold_ns, self._makespan):
                return
            images = [self._image_tables[number][operator][option] for number in permutations]
            if any(image < option for image in images):
                continue
            longer = self._bounds.extended(extensions, option)
            if operator + 1 == len(self._options):
                if not self._prune or longer.bound_ns >= self._proven_bound_ns:  # else examined below a threshold
                    self._evaluate_partition(longer.options)
            else:
                same = [number for number, image in zip(permutations, images, strict=True) if image == option]
                self._search_below(longer, same)

    def _evaluate_partition(self, chosen: Sequence[int]) -> None:
        splits = tuple(options[option] for options, option in zip(self._options, chosen, strict=True))
        self._evaluated += 1
        makespan = self._evaluate(splits, None if math.isinf(self._makespan) else int(self._makespan))
        if makespan is not None and makespan < self._makespan:
            self._best, self._makespan = splits, makespan


def _image_tables(
    model: StepModel, options: Sequence[Sequence[Split]], check: Callable[[], None]
) -> Iterator[list[list[int]]]:
    """Yield for each non-trivial symmetry: by operator and split, the index of the split's image."""
    places = [{split: place for place, split in enumerate(splits)} for splits in options]
    for each in itertools.islice(symmetries(model.topology), 1, None):
        check()
        if all(permuted(split, each) in of for of, splits in zip(places, options, strict=True) for split in splits):
            yield [[of[permuted(split, each)] for split in splits] for of, splits in zip(places, options, strict=True)]
