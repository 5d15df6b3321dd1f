"""Operator times by number of threads: actual ones, and those predicted by hill climbing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from benchmarks.costs.climbing import Curve, HillClimb
from benchmarks.costs.machine import Saturation, Threads, Work, placements
from benchmarks.manycore.machines import CACHES, CORES
from benchmarks.manycore.steps import Step
from bow.schedule.scheduler import CacheTimes, Start

Times: TypeAlias = dict[int, int]  # of one operator, by number of threads: nanoseconds


@dataclass(frozen=True)
class Curves:
    """Times of a step's operators, with and without shared caches."""

    predicted: CacheTimes  # times for the scheduler
    actual: CacheTimes  # actual times


def learn(machine: Saturation, step: Step, noise: float, interval: int, seed: int) -> Curves:
    """Climb on noisy times of every operator, and return the predictions of the climbs.

    References:
        Liu et al., 2019, section III-C.
    """
    noisy = replace(machine, noise=noise, seed=seed)
    found = {work: _climbed(work, noisy, interval) for work in dict.fromkeys(step.works)}

    def in_nanoseconds(of: Callable[[Work, Threads], float]) -> CacheTimes:
        made = {
            work: [{case.threads: round(1e9 * of(work, case)) for case in lane} for lane in placements(CORES)]
            for work in found
        }
        apart, together = zip(*(made[work] for work in step.works), strict=True)
        return CacheTimes(together, apart, CACHES)

    return Curves(
        predicted=in_nanoseconds(lambda work, case: found[work].time_s(case)),
        actual=in_nanoseconds(lambda work, case: machine.time_s(work.flops, work.bytes_moved, work.kind, case)),
    )


def _climbed(work: Work, noisy: Saturation, interval: int) -> Curve:
    climb = HillClimb(CORES, interval)
    while (case := climb.next_placement()) is not None:
        climb.report(case, noisy.time_s(work.flops, work.bytes_moved, work.kind, case))
    return Curve(climb.measured)


class Teams:
    """Operator times that include a cost of changing the number of threads.

    Starting an operator with another number of threads than the previous one with the same first core (with `kinds`: of
    the same type) costs `change_ns`. Calls have to be made in the order in which operators start.

    Example:
        >>> teams = Teams([{2: 50, 4: 30}], change_ns=5)
        >>> [teams(Start(0, 0, threads, tuple(range(threads)))) for threads in (4, 2, 2)], teams.changes
        ([30, 55, 50], 1)

    References:
        Liu et al., 2019, section III-D, strategy 2.
    """

    def __init__(
        self, times: Sequence[Times] | CacheTimes, change_ns: int = 0, kinds: Sequence[str] | None = None
    ) -> None:
        self._times = times
        self._change_ns = change_ns
        self._kinds = kinds
        self._last: dict[object, int] = {}
        self.changes = 0

    def __call__(self, start: Start) -> int:
        """Return the nanoseconds of a started operator."""
        owner = (start.cores[0], start.sibling) if self._kinds is None else self._kinds[start.operator]
        changes = self._last.setdefault(owner, start.threads) != start.threads
        self._last[owner] = start.threads
        self.changes += changes
        times = self._times
        alone = (
            times.ns(start.operator, start.cores)
            if isinstance(times, CacheTimes)
            else times[start.operator][start.threads]
        )
        return alone + self._change_ns * changes
