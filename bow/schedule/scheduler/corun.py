"""Co-run scheduling: which operators of a step run together, with how many threads, and on which cores."""

import bisect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bow.errors import ScheduleError
from bow.schedule.scheduler.protocol import ReadyOperators, Start


def pair(one: str, other: str) -> tuple[str, str]:
    """Return two types in alphabetical order."""
    return (one, other) if one <= other else (other, one)


def separation(
    decisions: Sequence[Start],
    dependencies: Sequence[Collection[int]],
    kinds: Sequence[str],
    pairs: Collection[tuple[str, str]],
) -> tuple[tuple[int, int], ...]:
    """Return the waits that keep interfering types apart: `after` of a schedule."""
    # When decisions are replayed, times differ from the predictions, and two operators may overlap that were decided to
    # run one after the other. So the later one waits, unless a dependency, a shared core or another wait implies it.
    numbers = {start.operator: number for number, start in enumerate(decisions)}
    over: list[int] = []  # by decision: bit set of itself and the decisions that have finished before it
    last: dict[tuple[int, bool], int] = {}  # by core (or executor): the last decision that held it
    of_kind: dict[str, int] = {}
    found: list[tuple[int, int]] = []
    for number, start in enumerate(decisions):
        places = [(core, start.sibling) for core in start.cores or (start.executor,)]
        behind = {last[place] for place in places if place in last}
        behind |= {numbers[earlier] for earlier in dependencies[start.operator]}
        known = 1 << number
        for earlier in behind:
            known |= over[earlier]
        kind = kinds[start.operator]
        blamed = 0
        for other, started in of_kind.items():
            blamed |= started if pair(kind, other) in pairs else 0
        while left := blamed & ~known:
            latest = left.bit_length() - 1
            found.append((start.operator, decisions[latest].operator))
            known |= over[latest]
        over.append(known)
        of_kind[kind] = of_kind.get(kind, 0) | 1 << number
        last.update(dict.fromkeys(places, number))
    return tuple(found)


Times: TypeAlias = Mapping[int, int]  # nanoseconds of an operator by number of threads


def candidates(times: Times, count: int = 3) -> tuple[int, ...]:
    """Return the fastest numbers of threads, best first; ties by fewer threads (Liu et al., 2019, strategy 3)."""
    return tuple(sorted(times, key=lambda threads: (times[threads], threads))[:count])


def best_threads(times: Times) -> int:
    """Return the fastest number of threads of an operator, as in strategy 1."""
    return candidates(times, count=1)[0]


def threads_by_kind(times: Sequence[Times], kinds: Sequence[str]) -> dict[str, int]:
    """Return by type the best number of threads of its most time-consuming operator (Liu et al., 2019, strategy 2)."""
    largest: dict[str, Times] = {}
    for kind, own in zip(kinds, times, strict=True):
        if kind not in largest or min(own.values()) > min(largest[kind].values()):
            largest[kind] = own
    return {kind: best_threads(own) for kind, own in largest.items()}


class CacheTimes:
    """Times of operators with threads on shared caches or on separate ones (Liu et al., 2019, section III-C)."""

    def __init__(self, together: Sequence[Times], separate: Sequence[Times], caches: Sequence[int]) -> None:
        # By operator; a number of threads may be in only one of the two. `caches`: by core.
        if len(together) != len(separate):
            raise ScheduleError(
                f"{len(separate)} separate times for {len(together)} operators; give every operator both"
            )
        self._together, self._separate = together, separate
        self.caches = tuple(caches)

    @property
    def least(self) -> list[dict[int, int]]:
        """By operator and number of threads: nanoseconds in the faster arrangement."""
        return [
            {threads: min(own[threads] for own in both if threads in own) for threads in sorted({*both[0], *both[1]})}
            for both in zip(self._together, self._separate, strict=True)
        ]

    def is_better_separate(self, operator: int, threads: int) -> bool:
        """Return whether an operator is faster (or only known) with no two threads sharing a cache."""
        together = self._together[operator].get(threads)
        return together is None or self._separate[operator].get(threads, together + 1) <= together

    def ns(self, operator: int, cores: Sequence[int]) -> int:
        """Return an operator's time on these cores, one thread each; if any share a cache, as if all did."""
        are_separate = len({self.caches[core] for core in cores}) == len(cores)
        first, second = (self._separate, self._together) if are_separate else (self._together, self._separate)
        threads = len(cores)
        return first[operator][threads] if threads in first[operator] else second[operator][threads]


@dataclass(frozen=True)
class Hold:
    """Resources of a running operator."""

    cores: tuple[int, ...]  # ascending
    ends_ns: int  # predicted


class Cores:
    """Allocation of a machine's cores."""

    def __init__(self, num_cores: int, caches: Sequence[int] | None = None) -> None:
        self.num_cores = num_cores
        self.holds: dict[int, Hold] = {}
        """By running operator."""
        self._caches = caches
        self._idle = list(range(num_cores))
        self._beside: dict[int, int] = {}  # by operator on a second hardware thread: its core
        self._idle_seconds = list(range(num_cores))

    @property
    def can_share(self) -> bool:
        """Whether an operator holds all cores and some second hardware thread is idle."""
        return bool(self._idle_seconds) and any(len(hold.cores) == self.num_cores for hold in self.holds.values())

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def until_ns(self) -> int | None:
        """Predicted end of the last operator that holds cores; None: there is none."""
        return max((hold.ends_ns for hold in self.holds.values()), default=None)

    def choose(self, threads: int, separate: bool = False) -> tuple[int, ...]:
        """Choose idle cores for an operator, ascending: the lowest numbers unless caches are known."""
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
        self.holds[operator] = Hold(cores, ends_ns)
        for core in cores:
            self._idle.remove(core)

    def share(self, operator: int) -> int:
        """Assign a second hardware thread to an operator; return its core."""
        self._beside[operator] = self._idle_seconds.pop(0)
        return self._beside[operator]

    def release(self, operator: int) -> None:
        if operator in self._beside:
            bisect.insort(self._idle_seconds, self._beside.pop(operator))
            return
        for core in self.holds.pop(operator).cores:
            bisect.insort(self._idle, core)


Strategy: TypeAlias = Literal[1, 2, 3, 4]  # strategies of Liu et al. up to this one; each builds on those before
MAX_THREAD_DIFFERENCE = 2  # most an operator's threads may differ from its type's: the paper's value


_Choice: TypeAlias = tuple[int, int]  # an operator and its number of threads


class CoRunScheduler:
    """The four strategies of Liu et al., 2019, section III-D, each of which builds on those before."""

    # Of several numbers of threads with which an operator fits, strategy 3 uses the smallest, to leave room for others.
    # What starts beside running operators ends no later than they do, so nothing prolongs the wait of an operator that
    # needs more cores. An operator that exceeds its predicted time has none left, and nothing fits alongside it.
    # The paper does not say with how many threads the longest operator starts if too few cores are idle: here with one
    # of its three fastest numbers near strategy 2's, or else it waits. With `narrow`, bow's addition, it starts on the
    # idle cores if it is predicted to end no later than if it waited.
    # The paper counts idle cores only: in its example, 18 threads on separate caches fit on 20 idle cores with 10
    # caches. Here they share caches, and take the time they take that way.

    def __init__(
        self,
        dependencies: Sequence[Collection[int]],
        times: Sequence[Mapping[int, int]] | CacheTimes,  # predicted nanoseconds alone, by number of threads
        kinds: Sequence[str],  # by operator: its type
        cores: int,
        strategy: Strategy = 3,  # the last one applied
        *,
        narrow: bool = False,
        avoid: Collection[tuple[str, str]] = (),  # types that never run together, as they interfere; see `pair`
    ) -> None:
        self._narrow = narrow
        self._by_cache = times if isinstance(times, CacheTimes) else None
        if isinstance(times, CacheTimes):
            if len(times.caches) != cores:
                raise ScheduleError(f"{len(times.caches)} caches for {cores} cores; name the cache of every core")
            times = times.least
        if cores < 1:
            raise ScheduleError(f"a schedule needs at least 1 core, got {cores}")
        if strategy not in (1, 2, 3, 4):
            raise ScheduleError(f"strategy must be 1, 2, 3 or 4, got {strategy}")
        for what, given in (("times", times), ("kinds", kinds)):
            if len(given) != len(dependencies):
                raise ScheduleError(f"{len(given)} {what} for {len(dependencies)} operators; give every operator one")
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
        self._avoid = frozenset(avoid)
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
        self._running.remove(operator)
        self._ready.update(dict.fromkeys(self._progress.finish(operator)))
        return self._decide(now_ns)

    def _begin(self) -> None:
        self._ready: dict[int, None] = {}  # in the order they became ready
        self._cores = Cores(self._num_cores, None if self._by_cache is None else self._by_cache.caches)
        self._running: set[int] = set()

    def _usual_threads(self) -> list[int]:
        """By operator: the number of threads of strategy 1 or 2."""
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
            self._note(operator)
            core = self._cores.share(operator)
            starts.append(Start(operator, self._num_cores + core, 1, (core,), sibling=True))
        return starts

    def _carry_out(self, operator: int, threads: int, now_ns: int) -> Start:
        held = self._cores_for(operator, threads)
        predicted_ns = self._time_on(operator, held)
        self._note(operator)
        self._cores.hold(operator, held, now_ns + predicted_ns)
        return Start(operator, held[0], threads, held)

    def _note(self, operator: int) -> None:
        del self._ready[operator]
        self._running.add(operator)

    def _cores_for(self, operator: int, threads: int) -> tuple[int, ...]:
        return self._cores.choose(
            threads, self._by_cache is not None and self._by_cache.is_better_separate(operator, threads)
        )

    def _time_on(self, operator: int, cores: tuple[int, ...]) -> int:
        return self._times[operator][len(cores)] if self._by_cache is None else self._by_cache.ns(operator, cores)

    def _time_now(self, operator: int, threads: int) -> int:
        """Return the predicted nanoseconds on the cores it would get now; enough must be idle."""
        return self._time_on(operator, self._cores_for(operator, threads))

    def _next(self, now_ns: int) -> _Choice | None:
        if self._strategy <= 2:  # the operator that has been ready for longest, once nothing runs
            operator = next(iter(self._ready))
            return None if self._running else (operator, self._usual[operator])
        return self._fitting(now_ns) or self._longest(now_ns) if self._cores.num_idle else None

    def _fitting(self, now_ns: int) -> _Choice | None:
        """Strategy 3: the first operator that fits alongside the running ones."""
        until_ns = self._cores.until_ns
        if until_ns is None:
            return None
        for operator in self._ready:
            threads = self._threads_within(operator, until_ns - now_ns)
            if threads is not None and not self._interferes(operator):
                return operator, threads
        return None

    def _small_beside(self, now_ns: int) -> int | None:
        """Strategy 4: the operator with the shortest single-thread time that fits alongside a holder of all cores."""
        until_ns = self._cores.until_ns
        if until_ns is None or self._cores.num_idle or not self._cores.can_share:
            return None
        calm = [operator for operator in self._ready if not self._interferes(operator)]
        operator = min(calm, key=lambda each: self._times[each][1], default=None)
        return None if operator is None or self._times[operator][1] > until_ns - now_ns else operator

    def _threads_within(self, operator: int, left_ns: int) -> int | None:
        """Return a number of threads with which an operator finds idle cores and ends in time."""
        usual, idle = self._usual[operator], self._cores.num_idle
        possible = (n for n in self._candidates[operator] if n <= idle)
        fewest = next((n for n in possible if self._time_now(operator, n) <= left_ns), None)
        if fewest is None or abs(fewest - usual) <= MAX_THREAD_DIFFERENCE:
            return fewest
        return usual if usual <= idle and self._time_now(operator, usual) <= left_ns else None

    def _longest(self, now_ns: int) -> _Choice | None:
        """Strategy 3, if nothing fits: the longest operator, if it finds idle cores."""
        calm = [operator for operator in self._ready if not self._interferes(operator)]
        if not calm:
            return None
        operator = max(calm, key=lambda each: self._times[each][self._usual[each]])
        threads = self._threads_found(operator, now_ns)
        return None if threads is None else (operator, threads)

    def _threads_found(self, operator: int, now_ns: int) -> int | None:
        """Return a number of threads with which an operator finds idle cores, however long it takes."""
        times, usual = self._times[operator], self._usual[operator]
        if usual <= self._cores.num_idle:
            return usual
        found = {threads: time for threads, time in times.items() if threads <= self._cores.num_idle}
        near = found.keys() & {n for n in self._candidates[operator] if abs(n - usual) <= MAX_THREAD_DIFFERENCE}
        if near:
            return best_threads({threads: found[threads] for threads in near})
        until_ns = self._cores.until_ns
        if not self._narrow or not found or until_ns is None:
            return None
        fewer = best_threads(found)
        return fewer if now_ns + self._time_now(operator, fewer) <= until_ns + times[usual] else None

    def _interferes(self, operator: int) -> bool:
        kind = self._kinds[operator]
        return bool(self._avoid) and any(pair(kind, self._kinds[other]) in self._avoid for other in self._running)


def _usable(operator: int, times: Times, cores: int) -> dict[int, int]:
    """Return the times for at most this many threads."""
    usable = {threads: time for threads, time in times.items() if 1 <= threads <= cores}
    if not usable:
        raise ScheduleError(f"operator {operator} has no predicted time for 1 to {cores} threads; predict one")
    if min(usable.values()) < 0:
        raise ScheduleError(
            f"predicted times must be at least 0, got {min(usable.values())} ns for operator {operator}"
        )
    return usable
