"""What operators take with each number of threads, and what a hill climb thinks that they take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from bow.bench.manycore.machines import CORES, nanoseconds
from bow.bench.manycore.steps import Step
from bow.costs import Case, HillClimb, Saturation, Work, cases
from bow.scheduler import Start

Times: TypeAlias = dict[int, int]
"""Of one operator, by number of threads: nanoseconds."""


@dataclass(frozen=True)
class Curves:
    """Times of a step's operators.

    Attributes:
        predicted: by operator: what the scheduler is told.
        actual: by operator: what it takes.
    """

    predicted: Sequence[Times]
    actual: Sequence[Times]


def learn(machine: Saturation, step: Step, noise: float, interval: int, seed: int) -> Curves:
    """Climb on noisy times of every operator, and keep what the climbs predict.

    With a number of threads for which caches can be shared or not, an operator runs as the climb says is faster.

    Args:
        machine: what operators take.
        step: the step.
        noise: of what is measured: standard deviation of the logarithm.
        interval: of the climb.
        seed: of the noise.

    References:
        Liu et al., 2019, section III-C.
    """
    noisy = replace(machine, noise=noise, seed=seed)
    found = {work: _climbed(work, machine, noisy, interval) for work in dict.fromkeys(step.works)}
    return Curves([found[work][0] for work in step.works], [found[work][1] for work in step.works])


def _climbed(work: Work, quiet: Saturation, noisy: Saturation, interval: int) -> tuple[Times, Times]:
    climb = HillClimb(CORES, interval)
    while (case := climb.next_case()) is not None:
        climb.report(case, noisy.time_s(work.flops, work.bytes_moved, work.kind, case))
    curve = climb.curve
    chosen: dict[int, Case] = {}
    for case in sorted(cases(CORES), key=curve.time_s, reverse=True):
        chosen[case.threads] = case
    ascending = sorted(chosen)
    predicted = {threads: round(1e9 * curve.time_s(chosen[threads])) for threads in ascending}
    return predicted, {threads: nanoseconds(quiet, work, chosen[threads]) for threads in ascending}


class Teams:
    """How long operators take where it costs something that the number of threads changes.

    A core's team stays as long as what the core is the first of has as many threads as what it was the first of
    before. An operator's team stays as long as the last operator of its type had as many. Where it does not,
    `change_ns` is added. Whoever asks does so as operators start.

    Args:
        times: by operator, by number of threads: nanoseconds.
        change_ns: for each change.
        kinds: by operator: its type; None: teams belong to cores.

    Example:
        >>> teams = Teams([{2: 50, 4: 30}], change_ns=5)
        >>> [teams(Start(0, 0, threads, tuple(range(threads)))) for threads in (4, 2, 2)], teams.changes
        ([30, 55, 50], 1)

    References:
        Liu et al., 2019, section III-D, strategy 2.
    """

    def __init__(self, times: Sequence[Times], change_ns: int = 0, kinds: Sequence[str] | None = None) -> None:
        self._times = times
        self._change_ns = change_ns
        self._kinds = kinds
        self._last: dict[object, int] = {}
        self.changes = 0

    def __call__(self, start: Start) -> int:
        """Nanoseconds that what is started takes."""
        owner = (start.cores[0], start.sibling) if self._kinds is None else self._kinds[start.operator]
        changes = self._last.setdefault(owner, start.threads) != start.threads
        self._last[owner] = start.threads
        self.changes += changes
        return self._times[start.operator][start.threads] + self._change_ns * changes
