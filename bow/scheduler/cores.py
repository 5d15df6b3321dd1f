"""Which cores are held, by what, and until when."""

import bisect
from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """What an operator has while it runs.

    Attributes:
        cores: those that it holds, ascending; for a second hardware thread, the one core that it belongs to.
        ends_ns: when it is predicted to be over.
        sibling: it has a second hardware thread, and holds no core.
    """

    cores: tuple[int, ...]
    ends_ns: int
    sibling: bool


class Cores:
    """The cores of a machine and the second hardware threads on them.

    Args:
        num_cores: how many there are.

    Example:
        >>> cores = Cores(3)
        >>> cores.hold(7, threads=2, ends_ns=50).cores, cores.num_idle, cores.until_ns
        ((0, 1), 1, 50)
        >>> cores.release(7)
        >>> cores.num_idle, cores.until_ns
        (3, None)
    """

    def __init__(self, num_cores: int) -> None:
        self.num_cores = num_cores
        self.holds: dict[int, Hold] = {}
        """By operator that runs."""
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

    def hold(self, operator: int, threads: int, ends_ns: int) -> Hold:
        """Give an operator idle cores, those with the lowest numbers."""
        self.holds[operator] = Hold(tuple(self._idle[:threads]), ends_ns, sibling=False)
        del self._idle[:threads]
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
