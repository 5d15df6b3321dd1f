"""The replica matrix: all learners of a device as the rows of one tensor."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bow.errors import SettingError


class ReplicaMatrix:
    """Weights `W`, gradients `G` and corrections `C` of all learners, and the central model `z`."""

    # `W` and `G` reserve `capacity` rows, so that rows never move when learners are added or removed: views of a row
    # stay valid for the lifetime of its learner.

    def __init__(self, row_length: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        try:
            self._weights = torch.empty(capacity, row_length, dtype=dtype, device=device)
            self._gradients = torch.empty_like(self._weights)
        except RuntimeError as error:
            gib = 2 * capacity * row_length * dtype.itemsize / 2**30
            raise SettingError(
                f"weights and gradients of {capacity} learners take {gib:.1f} GiB, more than there is on {device}; "
                "use fewer learners"
            ) from error
        self._corrections: Tensor | None = None
        self.z: Float[Tensor, " parameters"] = torch.zeros(row_length, dtype=dtype, device=device)
        # Communicated between devices: `total`, followed by the number of contributing learners.
        self.allreduce_buffer = torch.zeros(row_length + 1, dtype=dtype, device=device)
        self.total: Float[Tensor, " parameters"] = self.allreduce_buffer[:-1]
        self.before: Float[Tensor, " parameters"] | None = None
        self.state: dict[str, Tensor] = {}
        self.by_device: Sequence[int] = ()
        self._set_learners(0)

    @property
    def corrections(self) -> Float[Tensor, "learners parameters"]:
        """Scratch rows for the synchroniser, allocated on first use."""
        if self._corrections is None:
            self._corrections = torch.empty_like(self._weights)
        return self._corrections[: self.learners]

    @property
    def has_corrections(self) -> bool:
        return self._corrections is not None

    def add_row(self) -> int:
        """Activate the next row, as a copy of `z`, and return its index."""
        index = self.learners
        if index >= self.capacity:
            raise SettingError(
                f"learners={index + 1} is more than the {self.capacity} rows reserved when training began; "
                "start with more learners to reserve more"
            )
        self._weights[index].copy_(self.z)
        self._gradients[index].zero_()
        self._set_learners(index + 1)
        return index

    def remove_row(self) -> None:
        self._set_learners(self.learners - 1)

    def leaf(self, learner: int) -> Float[Tensor, " parameters"]:
        # Not `W.detach()[j]`: rows would share a version counter, so that a step invalidates others' backward passes.
        return self._weights.data[learner].requires_grad_()

    def weights_of(self, learner: int) -> Float[Tensor, " parameters"]:
        return self._weights.data[learner]

    def gradient_of(self, learner: int) -> Float[Tensor, " parameters"]:
        return self._gradients.data[learner]

    def _set_learners(self, learners: int) -> None:
        self.learners = learners
        self.weights: Float[Tensor, "learners parameters"] = self._weights[:learners]
        self.gradients: Float[Tensor, "learners parameters"] = self._gradients[:learners]
