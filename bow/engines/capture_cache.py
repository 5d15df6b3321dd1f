"""Which shapes of batches have a captured learning task, and for how long it holds."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from bow.engines.frozen import FrozenValues, generators_kept
from bow.engines.task import Step
from bow.errors import CaptureError, reason

MAX_SHAPES = 8
"""Batches of so many different shapes are captured, each when it comes for the second time; others run uncaptured."""

MAX_CHANGES = 8
"""Values in Python that a capture has frozen may change so often; then nothing is captured any more."""

MAX_SEEN = 1000
"""So many shapes that came once are remembered."""

Captured = TypeVar("Captured")


class CaptureCache(Generic[Captured]):
    """What was captured, by shape of batch, until a value in Python changes that the step reads."""

    def __init__(self, step: Step, model: Callable[[], nn.Module]) -> None:
        self._step = step
        self._model = model
        self._captured: dict[Hashable, Captured] = {}
        self._unfit: set[Hashable] = set()
        self._seen: dict[Hashable, int] = {}  # in which round first
        self._frozen: FrozenValues | None = None
        self._num_changes = 0
        self.num_captures = 0
        """How often something has been captured."""
        self.newest: Hashable = None
        """The shape that was captured last."""
        self.refused: str | None = None
        """Why nothing is captured any more."""

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._captured)

    def __contains__(self, shape: object) -> bool:
        return shape in self._captured

    def __getitem__(self, shape: Hashable) -> Captured:
        return self._captured[shape]

    @property
    def has_changed(self) -> bool:
        """Whether something was captured anew."""
        return self._num_changes > 0

    @property
    def generators(self) -> list[Any]:
        """Random generators of the step's own."""
        return self._frozen.generators if self._frozen is not None else []

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors that the step reads and that are neither of the batch nor the model's parameters and buffers."""
        return self._frozen.tensors if self._frozen is not None else []

    def clear(self) -> None:
        """Forget what was captured; shapes that have come before are captured at once."""
        self._captured.clear()
        self._frozen = None

    def forget_if_changed(self) -> bool:
        """Forget what was captured if a value in Python that it has frozen has changed, and say whether that was so."""
        name = self._frozen.changed() if self._frozen is not None else None
        if name is None:
            return False
        self.clear()
        self._num_changes += 1
        if self._num_changes > MAX_CHANGES:
            self.refused = f"{name!r} changes in Python again and again, and the step would be captured anew each time"
        return True

    def wants(self, shape: Hashable, round_index: int) -> bool:
        """Whether to capture for a shape: the first that comes, others when they come for the second time."""
        if self.refused is not None or shape in self._captured or shape in self._unfit:
            return False
        if len(self._seen) > MAX_SEEN:
            self._seen.clear()
        seen = self._seen.setdefault(shape, round_index) < round_index
        return not self._captured or (seen and len(self._captured) < MAX_SHAPES)

    def add(self, shape: Hashable, capture: Callable[[], Captured]) -> None:
        """Capture for a shape."""
        frozen = self._frozen or FrozenValues(self._step, self._model())
        captured = _without_draws(frozen, capture)
        if frozen.changed():  # what is computed once and kept is there now
            frozen = FrozenValues(self._step, self._model())
            captured = _without_draws(frozen, capture)
        if name := frozen.changed():
            raise CaptureError(f"the step changes {name!r} in Python, which a graph would not repeat; use a buffer")
        self._captured[shape] = captured
        self.newest = shape
        self.num_captures += 1
        self._frozen = self._frozen or frozen

    def refuse(self, shape: Hashable, error: Exception) -> None:
        """A shape cannot be captured; where none is, nothing will be."""
        if self._captured:
            self._unfit.add(shape)
        else:
            self.refused = reason(error)


def _without_draws(frozen: FrozenValues, capture: Callable[[], Captured]) -> Captured:
    with generators_kept(frozen.generators) as have_drawn:
        captured = capture()
        if have_drawn():
            raise CaptureError("the step draws from a random generator of Python's or NumPy's; draw with torch")
    return captured
