"""The moving average of the central model's weights."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from bow.training.replicas import Replicas


class MovingAverage:
    """The exponential moving average of the central model's weights, which takes their place when it is looked at."""

    def __init__(self, replicas: Replicas, decay: float) -> None:
        self._weights = replicas.z
        # As torch.optim.swa_utils.AveragedModel, in float32 at least: in bfloat16 it would not move.
        self._average = replicas.z.to(torch.promote_types(replicas.z.dtype, torch.float32), copy=True)
        self._move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._rounds = 0

    @torch.no_grad()
    def round_ended(self) -> None:
        """Move it towards the weights, with which it begins."""
        if self._rounds:
            self._move([self._average], [self._weights.to(self._average.dtype)], self._rounds)
        else:
            self._average.copy_(self._weights)
        self._rounds += 1

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The central model has these weights meanwhile."""
        weights = self._weights.clone()
        self._weights.copy_(self._average)
        try:
            yield
        finally:
            self._weights.copy_(weights)

    @property
    def state(self) -> dict[str, Any]:
        return {"average": self._average.cpu(), "rounds": self._rounds}

    def load(self, state: Mapping[str, Tensor | int] | None) -> None:
        """Go on; where a checkpoint has none, from the weights of now."""
        self._average.copy_(self._weights if state is None else state["average"])  # type: ignore[arg-type]
        self._rounds = 1 if state is None else int(state["rounds"])
