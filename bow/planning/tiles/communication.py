"""Communication within a step: tensor parts between tiles, sums over tiles, and recorded spans."""

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
    """Records spans while it is on."""

    # The clock is system-wide: spans of processes on one machine can be compared. Spans of the categories `transfer`
    # and `reduction` are the time that the device waited, not the time in flight. On a GPU every span ends with a
    # synchronisation, which removes overlap: record only some steps.

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


PartMessage: TypeAlias = tuple[TensorPart, int, Tensor]  # part, peer device, and the values or the receive buffer


class PointToPoint:
    """Sends and receives tensor parts of one pass: values forward or gradients backward."""

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

    def wait_for_part(self, part: TensorPart) -> Tensor:
        works, tensor = self._arriving[part]
        if works:
            with self._recorder.span("transfer", f"tensor {part.tensor}"):
                wait_for(works)
            self._arriving[part] = [], tensor
        return tensor

    def discard(self, part: TensorPart) -> None:
        self._arriving.pop(part, None)

    def close(self) -> None:
        """Wait until all sends have completed."""
        for works, _ in self._leaving:
            wait_for(works)
        self._leaving.clear()
        self._arriving.clear()


def gather_rows(
    own: Sequence[tuple[TileTask, Tensor]], sums: SumTiles, group: ProcessGroup, recorder: SpanRecorder
) -> dict[Box, Tensor]:
    """Gather the tiles' rows of each sum, stacked in the order of the tiles."""
    # An all-gather by all-reduce: every device of a sum contributes its own rows and zeros for the others.
    found: dict[Box, Tensor] = {}
    for task, row in own:
        assert task.sums is not None
        if task.sums not in found:
            found[task.sums] = row.new_zeros(len(sums[task.sums]), *row.shape)
        found[task.sums][sums[task.sums].index(task)] = row
    all_reduce_sums(found, sums, group, recorder)
    return found


def all_reduce_sums(found: dict[Box, Tensor], sums: SumTiles, group: ProcessGroup, recorder: SpanRecorder) -> None:
    works: list[AsyncWork] = []
    for box in sorted(found):  # in the same order on all devices
        devices = sum_devices(sums[box])
        if len(devices) > 1:
            works.append(group.sum(found[box], devices))
    if works:
        with recorder.span("reduction", "sums"):
            wait_for(works)


def sum_devices(tasks: Sequence[TileTask]) -> tuple[int, ...]:
    """Return the devices with tiles of a sum, in ascending order."""
    return tuple(sorted({task.device for task in tasks}))
