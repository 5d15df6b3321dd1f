"""Which cores are held, by what, and until when."""

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """What an operator has while it runs."""

    cores: tuple[int, ...]  # those that it holds, ascending; for a second hardware thread, the core that it belongs to
    ends_ns: int  # predicted
    sibling: bool  # it has a second hardware thread, and holds no core


class Cores:
    """The cores of a machine and the second hardware threads on them."""

    def __init__(self, num_cores: int, caches: Sequence[int] | None = None) -> None:
        self.num_cores = num_cores
        self.holds: dict[int, Hold] = {}
        """By operator that runs."""
        self._caches = caches
        self._idle = list(range(num_cores))
        self._idle_seconds = list(range(num_cores))

    @property
    def num_idle(self) -> int:
        """How many cores nothing holds."""
        return len(self._idle)

    @property
    def until_ns(self) -> int | None:
        """When the last of the operators that hold cores is predicted to be over; None: nothing holds any."""
        return max((hold.ends_ns for hold in self.holds.values() if not hold.sibling), default=None)

    @property
    def can_share(self) -> bool:
        """Whether one operator holds all cores, and has one on which it is alone."""
        return bool(self._idle_seconds) and any(
            len(hold.cores) == self.num_cores for hold in self.holds.values() if not hold.sibling
        )

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

    def hold(self, operator: int, cores: tuple[int, ...], ends_ns: int) -> Hold:
        """Give an operator idle cores."""
        self.holds[operator] = Hold(cores, ends_ns, sibling=False)
        for core in cores:
            self._idle.remove(core)
        return self.holds[operator]

    def share(self, operator: int, ends_ns: int) -> Hold:
        """Give an operator the second hardware thread of a core."""
        self.holds[operator] = Hold((self._idle_seconds.pop(0),), ends_ns, sibling=True)
        return self.holds[operator]

    def release(self, operator: int) -> None:
        """Take back what an operator has."""
        hold = self.holds.pop(operator)
        for core in hold.cores:
            bisect.insort(self._idle_seconds if hold.sibling else self._idle, core)
