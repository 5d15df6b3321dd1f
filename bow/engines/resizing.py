"""Change the number of learners."""

from collections.abc import Callable

from bow.engines.context import RoundContext
from bow.sync import Timing


class Resizing:
    """Change the number of learners of a device, between two rounds."""

    def __init__(self, context: RoundContext, catch_up: Callable[[], None], resized: Callable[[], None]) -> None:
        self._group = context.group
        self._sync = context.sync
        self._averaging = context.averaging
        self._context = context
        self._catch_up = catch_up
        self._resized = resized

    def resize(self, learners: int) -> None:
        """Set the number of learners; all devices call this after the same round, each with a number of its own."""
        wanted = self._group.world.all_gather(learners)
        self._averaging.check(wanted)
        if any(more > now for more, now in zip(wanted, self._group.by_device, strict=True)):
            self._catch_up()
            self._averaging.settle()
            self._sync.grow(self._group.matrix, self._averaging.num_averaged)
        failure: BaseException | None = None
        try:
            self._resize_own(learners)
        except BaseException as error:
            failure = error
        self._group.count()
        if failure is not None:
            raise failure

    def _resize_own(self, learners: int) -> None:
        while len(self._group) > learners:
            self._change(self._group.remove)
        while len(self._group) < learners:
            self._change(self._add, undo=self._group.remove)
            if self._sync.timing is Timing.BEFORE_STEP:  # learners stay equal only with equal optimizer states
                self._group.optimizer.copy_state(source=0, target=len(self._group) - 1)

    def _add(self) -> None:
        self._group.add()
        rows = self._group.matrix
        rows.weights[len(self._group) - 1].copy_(self._sync.center(rows))

    def _change(self, change: Callable[[], None], undo: Callable[[], None] | None = None) -> None:
        self._catch_up()
        followed = self._sync.follows(self._group.num_all)
        change()
        if followed:  # z followed the only learner: averaging starts now, without momentum
            self._sync.start(self._group.matrix)
            self._context.restarts.drop.take()
        try:
            self._resized()
        except BaseException:  # no stream or no memory is left for it
            if undo is not None:
                undo()
                self._resized()
            raise
