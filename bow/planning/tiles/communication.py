"""Communication within a step: parts of tensors from tile to tile, sums over tiles, and a record of the waiting."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from bow.planning.problem.box import Box
from bow.planning.tiles.process_group import AsyncWork, ProcessGroup, wait_for
from bow.planning.tiles.program import SumTiles, TensorPart, TileTask
from bow.schedule import Span

Category: TypeAlias = Literal["forward", "backward", "transfer", "reduction", "update"]


class SpanRecorder:
    """Notes spans while it is on."""

    # The clock is the machine's: spans of processes on one machine can be compared. A span of the categories `transfer`
    # and `reduction` is the time that the device waited, not that for which something was under way. On a GPU every
    # span ends when the GPU has finished it, which takes away overlap: record some steps only.

    def __init__(self, number: int, device: torch.device) -> None:
        self.is_on = False
        self.spans: list[Span] = []
        self._place = f"device {number}"
        self._device = device

    @contextlib.contextmanager
    def span(self, category: Category, name: str) -> Iterator[None]:
        if not self.is_on:
            yield
            return
        start = self._now()
        yield
        self.spans.append(Span(name, self._place, start, self._now(), category))

    def _now(self) -> int:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.monotonic_ns()


PartMessage: TypeAlias = tuple[TensorPart, int, Tensor]
"""A part, the device at the other end, and the values or the place for them."""


class PointToPoint:
    """Sends and receives parts of one direction: values forward, or gradients backward."""

    def __init__(self, group: ProcessGroup, tags: Mapping[TensorPart, int], recorder: SpanRecorder) -> None:
        self._group = group
        self._tags = tags
        self._recorder = recorder
        self._arriving: dict[TensorPart, tuple[list[AsyncWork], Tensor]] = {}
        self._leaving: list[tuple[list[AsyncWork], list[Tensor]]] = []

    def exchange(self, sends: Sequence[PartMessage], receives: Sequence[PartMessage]) -> None:
        outgoing = [(tensor.contiguous(), device, self._tags[part]) for part, device, tensor in sends]
        incoming = [(tensor, device, self._tags[part]) for part, device, tensor in receives]
        leaving, arriving = self._group.exchange(outgoing, incoming)
        if outgoing:
            self._leaving.append((leaving, [tensor for tensor, _, _ in outgoing]))
        one_each = len(arriving) == len(receives)
        for place, (part, _, tensor) in enumerate(receives):
            self._arriving[part] = (arriving[place : place + 1] if one_each else arriving), tensor

    def arrived(self, part: TensorPart) -> Tensor:
        """The values of a part, once they are there."""
        works, tensor = self._arriving[part]
        if works:
            with self._recorder.span("transfer", f"tensor {part.tensor}"):
                wait_for(works)
            self._arriving[part] = [], tensor
        return tensor

    def forget(self, part: TensorPart) -> None:
        self._arriving.pop(part, None)

    def close(self) -> None:
        """Wait until all that was sent has left."""
        for works, _ in self._leaving:
            wait_for(works)
        self._leaving.clear()
        self._arriving.clear()


def rows_of_all(
    own: Sequence[tuple[TileTask, Tensor]], sums: SumTiles, group: ProcessGroup, recorder: SpanRecorder
) -> dict[Box, Tensor]:
    """What every tile of each sum has found, stacked in the order of the tiles."""
    # Every device of a sum puts its own rows among zeros, and all are added.
    found: dict[Box, Tensor] = {}
    for task, row in own:
        assert task.sums is not None
        if task.sums not in found:
            found[task.sums] = row.new_zeros(len(sums[task.sums]), *row.shape)
        found[task.sums][sums[task.sums].index(task)] = row
    add_up(found, sums, group, recorder)
    return found


def add_up(found: dict[Box, Tensor], sums: SumTiles, group: ProcessGroup, recorder: SpanRecorder) -> None:
    """Add tensors up over the devices of each sum, in place."""
    works: list[AsyncWork] = []
    for box in sorted(found):  # in the same order on all devices
        devices = sum_devices(sums[box])
        if len(devices) > 1:
            works.append(group.sum(found[box], devices))
    if works:
        with recorder.span("reduction", "sums"):
            wait_for(works)


def sum_devices(tasks: Sequence[TileTask]) -> tuple[int, ...]:
    """The devices that have tiles of a sum, in ascending order."""
    return tuple(sorted({task.device for task in tasks}))
