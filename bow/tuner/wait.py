"""Waits that become longer."""

FIRST_WAIT = 64
"""Windows until what failed is tried again; twice as many after each further failure."""

LONGEST_WAIT = 1024


class Wait:
    """How long not to try something again.

    Example:
        >>> wait = Wait()
        >>> wait.begin(now=0)
        >>> wait.is_over(now=63), wait.is_over(now=64)
        (False, True)
        >>> wait.begin(now=64)
        >>> wait.is_over(now=191), wait.is_over(now=192)
        (False, True)
        >>> wait.relax(now=1000)
        >>> wait.begin(now=1000)
        >>> wait.is_over(now=1064)
        True
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Nothing has failed."""
        self._began = self._until = 0
        self._next = FIRST_WAIT

    def begin(self, now: int) -> None:
        """It has failed now; the wait after this one is twice as long."""
        self._began, self._until = now, now + self._next
        self._next = min(2 * self._next, LONGEST_WAIT)

    def relax(self, now: int) -> None:
        """Begin with the shortest wait again, if this one has been over for as long as it was."""
        if now - self._until >= self._until - self._began:
            self.reset()

    def is_over(self, now: int) -> bool:
        """Whether it may be tried again."""
        return now >= self._until
