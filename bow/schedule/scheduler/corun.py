"""Which operators of a step run together, with how many threads, and on which cores."""

import bisect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bow.errors import ScheduleError
from bow.schedule.scheduler.interference import Interference, pair
from bow.schedule.scheduler.protocol import ReadyOperators, Start

Times: TypeAlias = Mapping[int, int]
"""Of one operator, by number of threads: nanoseconds."""


def candidates(times: Times, count: int = 3) -> tuple[int, ...]:
    """The numbers of threads with which an operator is fastest, the best first; of equal times the fewest threads.

    References:
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D, strategy 3.
    """
    return tuple(sorted(times, key=lambda threads: (times[threads], threads))[:count])


def best_threads(times: Times) -> int:
    """The number of threads with which an operator is fastest, which strategy 1 gives it."""
    return candidates(times, count=1)[0]


def threads_by_kind(times: Sequence[Times], kinds: Sequence[str]) -> dict[str, int]:
    """One number of threads for each type of operator: the best one of its most time-consuming instance.

    Instances are compared by their least times; of equal ones the first counts. All then use the same number, and the
    teams of threads stay as they are.
    """
    largest: dict[str, Times] = {}
    for kind, own in zip(kinds, times, strict=True):
        if kind not in largest or min(own.values()) > min(largest[kind].values()):
            largest[kind] = own
    return {kind: best_threads(own) for kind, own in largest.items()}


class CacheTimes:
    """Times of operators on a machine where cores share caches.

    With as many threads, an operator can be faster where they share caches, since they use each other's data, or where
    they do not, since each has more room.

    Args:
        together: by operator: nanoseconds where threads share caches as far as they can.
        separate: likewise, where no two share one; a number of threads may stand in one of the two alone.
        caches: by core: the cache that it has or shares.

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, section III-C.
    """

    def __init__(self, together: Sequence[Times], separate: Sequence[Times], caches: Sequence[int]) -> None:
        if len(together) != len(separate):
            raise ScheduleError(
                f"{len(separate)} separate times for {len(together)} operators; give every operator both"
            )
        self._together, self._separate = together, separate
        self.caches = tuple(caches)

    @property
    def least(self) -> list[dict[int, int]]:
        """By operator, by number of threads: nanoseconds where it is faster."""
        return [
            {threads: min(own[threads] for own in both if threads in own) for threads in sorted({*both[0], *both[1]})}
            for both in zip(self._together, self._separate, strict=True)
        ]

    def check(self, cores: int) -> None:
        """Refuse a machine with another number of cores."""
        if len(self.caches) != cores:
            raise ScheduleError(f"{len(self.caches)} caches for {cores} cores; name the cache of every core")

    def is_better_separate(self, operator: int, threads: int) -> bool:
        """Whether an operator is faster where no two threads share a cache, or known there alone."""
        together = self._together[operator].get(threads)
        return together is None or self._separate[operator].get(threads, together + 1) <= together

    def ns(self, operator: int, cores: Sequence[int]) -> int:
        """How long an operator takes on these cores, one thread on each: where some share caches, as if all did."""
        are_separate = len({self.caches[core] for core in cores}) == len(cores)
        first, second = (self._separate, self._together) if are_separate else (self._together, self._separate)
        threads = len(cores)
        return first[operator][threads] if threads in first[operator] else second[operator][threads]


@dataclass(frozen=True)
class Hold:
    """What an operator has while it runs."""

    cores: tuple[int, ...]  # ascending
    ends_ns: int  # predicted


class Cores:
    """The cores of a machine."""

    def __init__(self, num_cores: int, caches: Sequence[int] | None = None) -> None:
        self.num_cores = num_cores
        self.holds: dict[int, Hold] = {}
        """By operator that runs."""
        self._caches = caches
        self._idle = list(range(num_cores))
        self._beside: dict[int, int] = {}  # by operator on the second hardware thread of a core: that core
        self._idle_seconds = list(range(num_cores))

    @property
    def can_share(self) -> bool:
        """Whether an operator holds all cores, and has one on which it is alone."""
        return bool(self._idle_seconds) and any(len(hold.cores) == self.num_cores for hold in self.holds.values())

    @property
    def num_idle(self) -> int:
        """How many cores nothing holds."""
        return len(self._idle)

    @property
    def until_ns(self) -> int | None:
        """When the last of the operators that hold cores is predicted to be over; None: nothing holds any."""
        return max((hold.ends_ns for hold in self.holds.values()), default=None)

    def choose(self, threads: int, separate: bool = False) -> tuple[int, ...]:
        """Idle cores for an operator, ascending: those with the lowest numbers where caches do not count."""
        if self._caches is None:
            return tuple(self._idle[:threads])
        idle_of = Counter(self._caches[core] for core in self._idle)
        earlier = Counter[int]()
        ranked = []
        for core in self._idle:
            cache = self._caches[core]
            rank = (earlier[cache], idle_of[cache]) if separate else (-idle_of[cache], cache)
            earlier[cache] += 1
            ranked.append((rank, core))
        return tuple(sorted(core for _, core in sorted(ranked)[:threads]))

    def hold(self, operator: int, cores: tuple[int, ...], ends_ns: int) -> None:
        """Give an operator idle cores."""
        self.holds[operator] = Hold(cores, ends_ns)
        for core in cores:
            self._idle.remove(core)

    def share(self, operator: int) -> int:
        """Give an operator the second hardware thread of a core."""
        self._beside[operator] = self._idle_seconds.pop(0)
        return self._beside[operator]

    def release(self, operator: int) -> None:
        if operator in self._beside:
            bisect.insort(self._idle_seconds, self._beside.pop(operator))
            return
        for core in self.holds.pop(operator).cores:
            bisect.insort(self._idle, core)


Strategy: TypeAlias = Literal[1, 2, 3, 4]
"""How far the strategies of Liu et al. are applied, each on top of those before."""

MOST_DIFFERENCE = 2
"""So many threads more or fewer than others of its type an operator may have: the paper's empirical value."""


_Choice: TypeAlias = tuple[int, int]  # an operator, and its number of threads


@dataclass
class _RunningOperator:
    started_ns: int
    predicted_ns: int
    beside: set[int] = field(default_factory=set)


class CoRunScheduler:
    """Gives every operator a number of threads of its own, and runs operators together that fit beside each other.

    1. Every operator has the number of threads with which it is fastest. One runs after another, as they became ready.
    2. All operators of a type have the number that is best for the most time-consuming of them, so that teams of
       threads seldom change.
    3. While cores are idle, the ready operators are examined as they became ready. The first that fits starts: with
       one of the three numbers of threads with which it is fastest it finds idle cores, and it is over no later than
       what runs. That is the operator predicted to end last of those that hold cores: what is over by then delays
       nothing that waits for all cores. Of several numbers that fit it takes the fewest threads, so that more
       operators find room. Where that is more than 2 away from strategy 2's number, it takes that one if it fits too.

       If nothing fits, or nothing runs, the ready operator that takes longest starts, with strategy 2's number. Where
       fewer cores are idle it takes the fastest of its three numbers that finds cores and is at most 2 away; where
       there is none it waits. Others may start meanwhile if they fit. As these are over no later than what runs, it
       waits no longer than for that.
    4. While one operator holds all cores, those that take least with one thread run on second hardware threads, one
       on each core, as long as they are over no later than it.

    With `narrow`, beyond the paper, that operator does not wait, but starts on the idle cores, however far its number
    of threads is from strategy 2's, if it is predicted to be over no later than if it waited for what runs.

    Remaining times are predicted ones: what takes longer than predicted has nothing left, and nothing fits beside it.

    Operators whose types have interfered in an earlier step are kept separate. The scheduler itself observes how long
    operators take; a runtime that repeats its decisions may observe as well.

    Where caches count, an operator's threads sit together or separate, as it is predicted to be faster and as far as
    idle cores allow, and whether it fits is decided by its time on those cores. The paper counts idle cores alone: in
    its own example 18 threads that share no cache find room on 20 idle cores, which have 10 caches. Here they share
    them, and take as long as they take so.

    References:
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D.
    """

    def __init__(
        self,
        dependencies: Sequence[Collection[int]],
        times: Sequence[Mapping[int, int]] | CacheTimes,  # predicted nanoseconds alone, by number of threads
        kinds: Sequence[str],  # by operator: its type
        cores: int,
        strategy: Strategy = 3,  # the last one that is applied
        *,
        narrow: bool = False,
        interference: Interference | None = None,  # what was observed, kept from step to step
    ) -> None:
        self._narrow = narrow
        self._by_cache = times if isinstance(times, CacheTimes) else None
        if isinstance(times, CacheTimes):
            times.check(cores)
            times = times.least
        _check(len(dependencies), times, kinds, cores, strategy, interference)
        self._strategy = strategy
        self._kinds = tuple(kinds)
        self._num_cores = cores
        self._times = [_usable(operator, own, cores) for operator, own in enumerate(times)]
        self._usual = self._usual_threads()
        self._candidates = [sorted(candidates(own)) for own in self._times]
        for operator, own in enumerate(self._times if strategy == 4 else ()):
            if 1 not in own:
                raise ScheduleError(
                    f"operator {operator} ({kinds[operator]}) has no predicted time for 1 thread; predict one"
                )
        self._interference = interference
        self._progress = ReadyOperators(dependencies)
        self._begin()

    @property
    def done(self) -> bool:
        return self._progress.done

    def start(self, now_ns: int = 0) -> list[Start]:
        self._begin()
        self._ready.update(dict.fromkeys(self._progress.begin()))
        return self._decide(now_ns)

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        self._cores.release(operator)
        self._observe(operator, now_ns)
        self._ready.update(dict.fromkeys(self._progress.finish(operator)))
        return self._decide(now_ns)

    def _begin(self) -> None:
        self._ready: dict[int, None] = {}  # as they became ready
        self._cores = Cores(self._num_cores, None if self._by_cache is None else self._by_cache.caches)
        self._runs: dict[int, _RunningOperator] = {}
        self._avoided = frozenset[tuple[str, str]]() if self._interference is None else self._interference.pairs

    def _usual_threads(self) -> list[int]:
        """By operator: strategy 1's or 2's number of threads."""
        if self._strategy == 1:
            return [best_threads(own) for own in self._times]
        by_kind = threads_by_kind(self._times, self._kinds)
        for operator, kind in enumerate(self._kinds):
            if by_kind[kind] not in self._times[operator]:
                raise ScheduleError(
                    f"operator {operator} ({kind}) has no predicted time for {by_kind[kind]} threads; "
                    "predict all operators of a type for the same numbers"
                )
        return [by_kind[kind] for kind in self._kinds]

    def _decide(self, now_ns: int) -> list[Start]:
        starts = []
        while self._ready and (choice := self._next(now_ns)) is not None:
            starts.append(self._carry_out(*choice, now_ns))
        while self._strategy == 4 and self._ready and (operator := self._small_beside(now_ns)) is not None:
            self._note(operator, now_ns, self._times[operator][1])
            core = self._cores.share(operator)
            starts.append(Start(operator, self._num_cores + core, 1, (core,), sibling=True))
        return starts

    def _carry_out(self, operator: int, threads: int, now_ns: int) -> Start:
        held = self._cores_for(operator, threads)
        predicted_ns = self._time_on(operator, held)
        self._note(operator, now_ns, predicted_ns)
        self._cores.hold(operator, held, now_ns + predicted_ns)
        return Start(operator, held[0], threads, held)

    def _note(self, operator: int, now_ns: int, predicted_ns: int) -> None:
        """An operator starts beside those that run."""
        del self._ready[operator]
        others = set(self._runs)
        self._runs[operator] = _RunningOperator(now_ns, predicted_ns, others)
        for other in others:
            self._runs[other].beside.add(operator)

    def _cores_for(self, operator: int, threads: int) -> tuple[int, ...]:
        """Those of the idle cores that suit it."""
        return self._cores.choose(
            threads, self._by_cache is not None and self._by_cache.is_better_separate(operator, threads)
        )

    def _time_on(self, operator: int, cores: tuple[int, ...]) -> int:
        return self._times[operator][len(cores)] if self._by_cache is None else self._by_cache.ns(operator, cores)

    def _time_now(self, operator: int, threads: int) -> int:
        """Predicted nanoseconds on the cores that it would have now; enough are idle."""
        return self._time_on(operator, self._cores_for(operator, threads))

    def _observe(self, operator: int, now_ns: int) -> None:
        run = self._runs.pop(operator)
        begun = {other for other, each in self._runs.items() if each.started_ns == now_ns}
        for other in begun:  # in the moment in which this one ended: not beside it
            self._runs[other].beside.discard(operator)
        if self._interference is not None:
            took_ns = now_ns - run.started_ns
            self._interference.observe(operator, run.predicted_ns, took_ns, run.beside - begun)

    def _next(self, now_ns: int) -> _Choice | None:
        if self._strategy <= 2:
            return self._in_turn()
        return self._fitting(now_ns) or self._longest(now_ns) if self._cores.num_idle else None

    def _in_turn(self) -> _Choice | None:
        """Strategies 1 and 2: what has been ready for longest, once nothing runs."""
        operator = next(iter(self._ready))
        return None if self._runs else (operator, self._usual[operator])

    def _fitting(self, now_ns: int) -> _Choice | None:
        """Strategy 3: the first that fits beside what runs."""
        until_ns = self._cores.until_ns
        if until_ns is None:
            return None
        for operator in self._ready:
            threads = self._threads_within(operator, until_ns - now_ns)
            if threads is not None and not self._interferes(operator):
                return operator, threads
        return None

    def _small_beside(self, now_ns: int) -> int | None:
        """Strategy 4: what takes least with one thread, beside an operator that holds all cores."""
        until_ns = self._cores.until_ns
        if until_ns is None or self._cores.num_idle or not self._cores.can_share:
            return None
        calm = [operator for operator in self._ready if not self._interferes(operator)]
        operator = min(calm, key=lambda each: self._times[each][1], default=None)
        return None if operator is None or self._times[operator][1] > until_ns - now_ns else operator

    def _threads_within(self, operator: int, left_ns: int) -> int | None:
        """With how many threads an operator finds idle cores and is over in time."""
        usual, idle = self._usual[operator], self._cores.num_idle
        possible = (n for n in self._candidates[operator] if n <= idle)
        fewest = next((n for n in possible if self._time_now(operator, n) <= left_ns), None)
        if fewest is None or abs(fewest - usual) <= MOST_DIFFERENCE:
            return fewest
        return usual if usual <= idle and self._time_now(operator, usual) <= left_ns else None

    def _longest(self, now_ns: int) -> _Choice | None:
        """Strategy 3, where nothing fits: what takes longest, if it finds idle cores."""
        calm = [operator for operator in self._ready if not self._interferes(operator)]
        if not calm:
            return None
        operator = max(calm, key=lambda each: self._times[each][self._usual[each]])
        threads = self._threads_found(operator, now_ns)
        return None if threads is None else (operator, threads)

    def _threads_found(self, operator: int, now_ns: int) -> int | None:
        """With how many threads an operator finds idle cores, however long it takes."""
        times, usual = self._times[operator], self._usual[operator]
        if usual <= self._cores.num_idle:
            return usual
        found = {threads: time for threads, time in times.items() if threads <= self._cores.num_idle}
        near = found.keys() & {n for n in self._candidates[operator] if abs(n - usual) <= MOST_DIFFERENCE}
        if near:
            return best_threads({threads: found[threads] for threads in near})
        until_ns = self._cores.until_ns
        if not self._narrow or not found or until_ns is None:
            return None
        fewer = best_threads(found)
        return fewer if now_ns + self._time_now(operator, fewer) <= until_ns + times[usual] else None

    def _interferes(self, operator: int) -> bool:
        """Whether its type and that of something that runs are to be kept separate."""
        kind = self._kinds[operator]
        return bool(self._avoided) and any(pair(kind, self._kinds[other]) in self._avoided for other in self._runs)


def _usable(operator: int, times: Times, cores: int) -> dict[int, int]:
    """The times with as many threads as there are cores, or fewer."""
    usable = {threads: time for threads, time in times.items() if 1 <= threads <= cores}
    if not usable:
        raise ScheduleError(f"operator {operator} has no predicted time for 1 to {cores} threads; predict one")
    if min(usable.values()) < 0:
        raise ScheduleError(
            f"predicted times must be at least 0, got {min(usable.values())} ns for operator {operator}"
        )
    return usable


def _check(
    num_operators: int,
    times: Sequence[Times],
    kinds: Sequence[str],
    cores: int,
    strategy: int,
    interference: Interference | None,
) -> None:
    if cores < 1:
        raise ScheduleError(f"a schedule needs at least 1 core, got {cores}")
    if strategy not in (1, 2, 3, 4):
        raise ScheduleError(f"strategy must be 1, 2, 3 or 4, got {strategy}")
    for what, given in (("times", times), ("kinds", kinds)):
        if len(given) != num_operators:
            raise ScheduleError(f"{len(given)} {what} for {num_operators} operators; give every operator one")
    if interference is not None and interference.kinds != tuple(kinds):
        raise ScheduleError("the interference was seen between operators of other types; begin anew for this graph")
