"""What controllers and the parameter server tell each other: plain data, so that reading it runs nothing."""

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bow.planning.placement.training import Batch


def packed(header: dict[str, Any], values: Tensor) -> bytes:
    """A message of one line of JSON and then numbers."""
    return json.dumps(header).encode() + b"\n" + values.detach().contiguous().numpy().tobytes()


def unpacked(message: bytes) -> tuple[dict[str, Any], Tensor]:
    """The header and the numbers of a message.

    Example:
        >>> unpacked(packed({"version": 3}, torch.tensor([1.0, 2.0])))
        ({'version': 3}, tensor([1., 2.]))
    """
    line, _, numbers = message.partition(b"\n")
    return json.loads(line), torch.from_numpy(np.frombuffer(numbers, np.float32).copy())


def batch_header(batch: Batch, state: dict[str, Any]) -> dict[str, Any]:
    """What goes with a controller's gradients, as plain values."""
    plain = {**state, "generator": state["generator"].tolist()}
    return {"placements": batch.placements, "times": batch.times, "entropy": batch.entropy, "state": plain}


def batch_of(header: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
    """A batch, and the state of its controller."""
    placements = tuple(map(tuple, header["placements"]))
    state = {**header["state"], "generator": torch.tensor(header["state"]["generator"], dtype=torch.uint8)}
    return Batch(placements, tuple(header["times"]), header["entropy"]), state
