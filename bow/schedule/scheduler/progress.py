"""Which operators have become ready."""

from collections.abc import Collection, Sequence

from bow.schedule.scheduler.levels import followers


class Progress:
    """How far a step has come: what has finished, and what no longer waits for anything.

    Args:
        dependencies: by operator: those that must have run before it.

    Example:
        >>> progress = Progress([(), (), (0, 1)])
        >>> progress.begin(), progress.finish(0), progress.finish(1)
        ([0, 1], [], [2])
    """

    def __init__(self, dependencies: Sequence[Collection[int]]) -> None:
        self._counts = [len(set(before)) for before in dependencies]
        self._following = followers(dependencies)
        self.begin()

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return self.num_finished == len(self._counts)

    def begin(self) -> list[int]:
        """Begin a step: the operators that wait for none."""
        self._waiting = list(self._counts)
        self.num_finished = 0
        return [operator for operator, count in enumerate(self._counts) if not count]

    def finish(self, operator: int) -> list[int]:
        """The operators that waited for this one last, in ascending order."""
        self.num_finished += 1
        ready = []
        for later in self._following[operator]:
            self._waiting[later] -= 1
            if not self._waiting[later]:
                ready.append(later)
        return ready
