"""`offload=True`: which learning tasks can swap, and what puts them into the context that does."""

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable
from typing import Literal, TypeAlias

from torch import Tensor
from torch.utils._pytree import tree_leaves

from bow.devices import StreamDevice
from bow.engines.saved_tensors import MIN_BYTES, Offload
from bow.engines.task import Batch
from bow.errors import SettingError
from bow.replicas import LearnerGroup

Memory: TypeAlias = Literal["device", "swap"]
"""Where a learning task keeps what its backward pass needs."""

Around: TypeAlias = Callable[[int, Batch], contextlib.AbstractContextManager[None]]
"""Makes the context around forward and backward pass of a learner's task on a batch."""

SWAPPING = ("eager", "streams")
"""The engines whose learning tasks are run by autograd every time. In a graph or a fused task nothing is saved."""


def check_swap(memory: Memory, engine: str, *, streams: bool) -> None:
    """Refuse an engine that cannot swap.

    Warns:
        UserWarning: `offload=True` has no effect on a CPU.
    """
    if memory == "swap" and not streams:
        warnings.warn(
            "offload=True has no effect on a CPU, whose memory is the host's already; leave it out", stacklevel=3
        )
    elif memory == "swap" and engine not in SWAPPING:
        raise SettingError(
            f"offload=True needs learning tasks that save tensors for their backward pass, which those of engine "
            f'"{engine}" do not; use engine="eager" or "streams"'
        )


class OffloadedTasks:
    """Puts every learning task of a group of learners into the context of a `Offload`."""

    def __init__(self, group: LearnerGroup, device: StreamDevice, *, at_once: bool, min_bytes: int = MIN_BYTES) -> None:
        self._group = group
        self._device = device
        self._at_once = at_once
        self._min_bytes = min_bytes
        self._swaps: dict[str, Offload] = {}
        self._making = threading.Lock()

    def __call__(self, learner: int, batch: Batch) -> contextlib.AbstractContextManager[None]:
        """The context of one learning task, on the current stream."""
        module = self._group.learners[learner].module
        tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        return self._of(learner).task(itertools.chain(module.parameters(), module.buffers(), tensors))

    def close(self) -> None:
        """Wait for the copies, and give the pinned memory back."""
        for swap in self._swaps.values():
            swap.close()

    def _of(self, learner: int) -> Offload:
        name = f"swap of learner {learner}" if self._at_once else "swap"
        with self._making:
            if name not in self._swaps:
                self._swaps[name] = Offload(self._device, name, self._min_bytes)
            return self._swaps[name]


def swapped_tasks(
    memory: Memory, group: LearnerGroup, device: StreamDevice | None, *, at_once: bool
) -> OffloadedTasks | None:
    """What swaps the learning tasks of a group; None where nothing is swapped."""
    return OffloadedTasks(group, device, at_once=at_once) if memory == "swap" and device is not None else None
