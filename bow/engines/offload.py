"""`offload=True`: check that the engine supports it, and run learning tasks in the context that offloads."""

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor
from torch.utils._pytree import tree_leaves

from bow.data import Batch
from bow.devices import StreamDevice
from bow.errors import SettingError, warn_user
from bow.replicas import LearnerGroup

if TYPE_CHECKING:
    from bow.engines.saved_tensors import Offload

# Makes the context around the forward and backward pass of a learner's task on a batch.
Around: TypeAlias = Callable[[int, Batch], contextlib.AbstractContextManager[None]]

OFFLOADING = ("eager", "streams")  # engines that run autograd in every task; graphs and fused tasks save no tensors


def check_offload(offload: bool, engine: str, *, streams: bool) -> None:
    """Raise if an engine cannot offload; warn if there is nothing to offload."""
    if offload and not streams:
        warn_user("offload=True has no effect on a CPU, whose memory is the host's already; leave it out")
    elif offload and engine not in OFFLOADING:
        raise SettingError(
            f"offload=True needs learning tasks that save tensors for their backward pass, which those of engine "
            f'"{engine}" do not; use engine="eager" or "streams"'
        )


class OffloadedTasks:
    """Run every learning task of a group of learners in the context of an `Offload`."""

    def __init__(
        self, group: LearnerGroup, device: StreamDevice, *, at_once: bool, min_bytes: int | None = None
    ) -> None:
        self._group = group
        self._device = device
        self._at_once = at_once
        self._min_bytes = min_bytes
        self._offloads: dict[str, Offload] = {}
        self._making = threading.Lock()

    def __call__(self, learner: int, batch: Batch) -> contextlib.AbstractContextManager[None]:
        module = self._group.learners[learner].module
        tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        return self._of(learner).task(itertools.chain(module.parameters(), module.buffers(), tensors))

    def close(self) -> None:
        for each in self._offloads.values():
            each.close()

    def _of(self, learner: int) -> "Offload":
        from bow.engines.saved_tensors import MIN_BYTES, Offload  # rarely needed

        name = f"offload of learner {learner}" if self._at_once else "offload"
        with self._making:
            if name not in self._offloads:
                least = MIN_BYTES if self._min_bytes is None else self._min_bytes
                self._offloads[name] = Offload(self._device, name, least)
            return self._offloads[name]
