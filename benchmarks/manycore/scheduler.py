"""The strategy of Liu et al. for manycore processors that bow does not carry out: second hardware threads."""

import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

from bow.errors import ScheduleError
from bow.schedule.scheduler import CacheTimes, CoRunScheduler, Interference, Start
from bow.schedule.scheduler.corun import Cores

Strategy: TypeAlias = Literal[1, 2, 3, 4]


class SharedCores(Cores):
    """Cores with a second hardware thread each."""

    def __init__(self, num_cores: int, caches: Sequence[int] | None = None) -> None:
        super().__init__(num_cores, caches)
        self._shared: dict[int, int] = {}  # by operator on a second hardware thread: its core
        self._idle_seconds = list(range(num_cores))

    @property
    def can_share(self) -> bool:
        """Whether one operator holds all cores, and has one on which it is alone."""
        return bool(self._idle_seconds) and any(len(hold.cores) == self.num_cores for hold in self.holds.values())

    def share(self, operator: int) -> int:
        """Give an operator the second hardware thread of a core."""
        self._shared[operator] = self._idle_seconds.pop(0)
        return self._shared[operator]

    def release(self, operator: int) -> None:
        if operator in self._shared:
            bisect.insort(self._idle_seconds, self._shared.pop(operator))
        else:
            super().release(operator)


class ManycoreScheduler(CoRunScheduler):
    """Strategies 1 to 3, and:

    4. While one operator holds all cores, those with the shortest serial time run on second hardware threads,
       one on each core and with one thread, as long as they are over no later than it.

    References:
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D.
    """

    _cores: SharedCores

    def __init__(
        self,
        dependencies: Sequence[Collection[int]],
        times: Sequence[Mapping[int, int]] | CacheTimes,
        kinds: Sequence[str],
        cores: int,
        strategy: Strategy = 3,
        *,
        hardware_threads: int = 1,  # of each core; strategy 4 takes the second
        narrow: bool = False,
        interference: Interference | None = None,
    ) -> None:
        if strategy == 4 and hardware_threads < 2:
            raise ScheduleError(f"strategy 4 needs 2 hardware threads a core, got {hardware_threads}; use strategy 3")
        self._shares = strategy == 4
        last = 3 if strategy == 4 else strategy
        super().__init__(dependencies, times, kinds, cores, last, narrow=narrow, interference=interference)
        for operator, own in enumerate(self._times if self._shares else ()):
            if 1 not in own:
                raise ScheduleError(
                    f"operator {operator} ({kinds[operator]}) has no predicted time for 1 threads; predict one"
                )

    def _begin(self) -> None:
        super()._begin()
        self._cores = SharedCores(self._num_cores, None if self._by_cache is None else self._by_cache.caches)

    def _decide(self, now_ns: int) -> list[Start]:
        starts = super()._decide(now_ns)
        while self._shares and self._ready and (operator := self._on_siblings(now_ns)) is not None:
            predicted_ns, core = self._times[operator][1], self._cores.share(operator)
            self._note(operator, now_ns, predicted_ns)
            starts.append(Start(operator, self._num_cores + core, 1, (core,), sibling=True))
        return starts

    def _on_siblings(self, now_ns: int) -> int | None:
        """Strategy 4: what is shortest with one thread, beside an operator that holds all cores."""
        until_ns = self._cores.until_ns
        if until_ns is None or self._cores.num_idle or not self._cores.can_share:
            return None
        calm = [operator for operator in self._ready if not self._interferes(operator)]
        operator = min(calm, key=lambda each: self._times[each][1], default=None)
        return None if operator is None or self._times[operator][1] > until_ns - now_ns else operator
