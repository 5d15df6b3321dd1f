"""The processes that run a partition, one for each device, and their communication within a step."""

import collections
import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from bow.errors import ClusterError, SettingError, reason
from bow.planning.problem.box import Box
from bow.planning.tiles.program import SumTiles, TensorPart, TileTask
from bow.schedule import Span

T = TypeVar("T")
PATIENCE = datetime.timedelta(minutes=30)

# First tags of the messages of sums and of losses; sum tags wrap around after `TAGS` sums.
SUM_TAG, LOSS_TAG, TAGS = 2**24, 2**25, 2**16

# Up to this size, three or more CPU devices sum by sending each other all their tensors; two devices always do.
# Gloo's allreduce uses threads that preempt the computing thread: over two processes with a core each, 256 bytes take
# 0.19 ms, against 0.07 ms with a message each way. Large tensors in isolation are faster (4 MiB: 1.6 ms against 6.3),
# but a step of the small NMT, with 11 sums of 2.5 MB in total, took 37 ms with it and 29 ms without.
EXCHANGED_BYTES = 2**18
THREADS = Path("/proc/self/task")
GLOO_THREAD_PREFIX = b"gloo_tcp"  # name prefix of Gloo's message threads


class AsyncWork(Protocol):
    """An asynchronous operation."""

    def wait(self) -> Any:
        """Wait until it is done; on a GPU, only make the current stream wait for it."""


Message: TypeAlias = tuple[Tensor, int, int]  # tensor, peer device, and a tag agreed by both sides


class ProcessGroup:
    """The devices of one learner under a partition: device d is the process of rank d in this group."""

    # The processes are divided into groups of equal size with consecutive ranks, which run the same partition on
    # different batches. All processes call the methods of their groups in the same order.

    def __init__(self, device: torch.device, learners: int = 1, *, is_alone: bool = False) -> None:
        self.device = device
        alone = is_alone or not dist.is_initialized()
        rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        if learners < 1 or world % learners:
            raise SettingError(
                f"{world} processes cannot be divided among {learners} learners; give a divisor of {world}"
            )
        self.learners = learners  # number of groups
        self.size = world // learners
        self.learner, self.rank = divmod(rank, self.size)
        self._everyone = tuple(range(self.size))
        self._across = self._create_learner_group() if self.learners > 1 else None
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._sums = collections.Counter[tuple[int, int]]()
        if self.learners == 1:
            self._groups[self._everyone] = None  # torch.distributed's default group
        if self.size > 1:
            self.prepare([self._everyone])
            # NCCL connects in the first collective, in which all ranks must take part.
            wait_for([self.sum(torch.zeros(1, device=device), self._everyone)])

    def prepare(self, sets: Iterable[Sequence[int]]) -> None:
        """Set up sums over sets of devices; all processes pass the same sets."""
        for devices in sorted({tuple(each) for each in sets if len(each) > 1}):
            by_messages = len(devices) == 2 and self.device.type == "cpu" and devices != self._everyone
            if devices not in self._groups and not by_messages:
                # Created by all processes for all learners: with local synchronisation, Gloo hangs if processes are
                # in different numbers of groups (pytorch #173608).
                for learner in range(self.learners):
                    ranks = [self._world_rank(device, learner) for device in devices]
                    group = _translate_errors(dist.new_group, ranks, timeout=PATIENCE)
                    if learner == self.learner:
                        self._groups[devices] = group
        if self.size > 1 and self.device.type == "cpu":
            deprioritise_gloo_threads()

    def exchange(
        self, sends: Sequence[Message], receives: Sequence[Message]
    ) -> tuple[list[AsyncWork], list[AsyncWork]]:
        """Start sends and receives in one batch: grouped and single messages must not be mixed."""
        group = self._groups.get(self._everyone)
        messages = [
            dist.P2POp(function, tensor, self._world_rank(device), group, tag)
            for function, those in ((dist.isend, sends), (dist.irecv, receives))
            for tensor, device, tag in those
        ]
        if not messages:
            return [], []
        works: list[AsyncWork] = [*_translate_errors(dist.batch_isend_irecv, messages)]
        if len(works) == len(messages):
            return works[: len(sends)], works[len(sends) :]
        return works, works  # one work for the whole batch

    def yield_core(self) -> None:
        """Yield the core to Gloo's message threads; see `deprioritise_gloo_threads`."""
        if self.size > 1 and self.device.type == "cpu" and hasattr(os, "sched_yield"):
            os.sched_yield()

    def sum(self, tensor: Tensor, devices: Sequence[int]) -> AsyncWork:
        """Start to sum a tensor over some devices, in place, with bitwise equal results on all."""
        if self._by_messages(len(devices), tensor.nbytes):
            return self._sum_by_messages(tensor, devices)
        return _translate_errors(dist.all_reduce, tensor, group=self._groups[tuple(devices)], async_op=True)  # type: ignore[no-any-return]

    def sum_all(self, tensors: Iterable[Tensor]) -> None:
        if self.size > 1:
            wait_for([self.sum(tensor, self._everyone) for tensor in tensors])

    def sum_over_learners(self, tensor: Tensor) -> AsyncWork:
        """Start to sum a tensor over the devices of this rank in all learners, in place."""
        return _translate_errors(dist.all_reduce, tensor, group=self._across, async_op=True)  # type: ignore[no-any-return]

    def broadcast(self, tensor: Tensor, source: int) -> AsyncWork:
        """Start to copy a device's tensor to all others."""
        if self._by_messages(2, tensor.nbytes):
            others = [device for device in self._everyone if device != self.rank]
            from_here = [(tensor.contiguous(), device, LOSS_TAG) for device in others]
            is_source = self.rank == source
            leaving, arriving = self.exchange(
                from_here if is_source else [], [] if is_source else [(tensor, source, LOSS_TAG)]
            )
            return _Messages([*leaving, *arriving], tensor)
        group = self._groups[self._everyone]
        return _translate_errors(dist.broadcast, tensor, src=self._world_rank(source), group=group, async_op=True)  # type: ignore[no-any-return]

    def broadcast_first(self, tensor: Tensor) -> None:
        """Copy the tensor of the first process to all other processes of all learners."""
        if self.size * self.learners > 1:
            _translate_errors(dist.broadcast, tensor, src=0)

    def all_gather(self, value: T) -> list[T]:
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        _translate_errors(dist.all_gather_object, values, value, group=self._groups[self._everyone])
        return values

    def _by_messages(self, count: int, num_bytes: int) -> bool:
        """Whether `count` devices sum or broadcast `num_bytes` by point-to-point messages."""
        return self.device.type == "cpu" and (count == 2 or num_bytes <= EXCHANGED_BYTES)

    def _sum_by_messages(self, tensor: Tensor, devices: Sequence[int]) -> AsyncWork:
        others = [device for device in devices if device != self.rank]
        own = tensor.contiguous()
        theirs = {device: torch.empty_like(own) for device in others}
        tags = {}
        for device in others:  # both sides count alike, since all start their sums in the same order
            pair = min(device, self.rank), max(device, self.rank)
            tags[device] = SUM_TAG + self._sums[pair] % TAGS
            self._sums[pair] += 1
        leaving, arriving = self.exchange(
            [(own, device, tags[device]) for device in others], [(theirs[d], d, tags[d]) for d in others]
        )
        parts = [own if device == self.rank else theirs[device] for device in devices]
        return _Messages([*leaving, *arriving], tensor, parts)

    def _create_learner_group(self) -> dist.ProcessGroup | None:
        """Create the group of the devices of this rank in all learners."""
        own = None
        for device in self._everyone:  # by all processes, in the same order
            ranks = [self._world_rank(device, learner) for learner in range(self.learners)]
            group = _translate_errors(dist.new_group, ranks, timeout=PATIENCE)
            own = group if device == self.rank else own
        return own

    def _world_rank(self, device: int, learner: int | None = None) -> int:
        return device + self.size * (self.learner if learner is None else learner)


@dataclasses.dataclass
class _Messages:
    """Pending messages, and the parts of a sum, which all devices add up in the same order."""

    works: Sequence[AsyncWork]
    tensor: Tensor
    parts: Sequence[Tensor] = ()

    def wait(self) -> None:
        wait_for(self.works)
        if self.parts:
            first, second, *others = self.parts
            total = first + second
            for part in others:
                total += part
            self.tensor.copy_(total)  # only after all messages: it may be a send buffer
        self.works = self.parts = ()


def deprioritise_gloo_threads() -> None:
    """Schedule Gloo's message threads so that they run only when the computing thread waits or yields."""
    # A thread woken by a message would preempt the computing thread at once. If that one is passing a message to Gloo
    # just then, it holds a lock for which the woken thread spins until its time slice ends, 4 ms at 250 Hz. With one
    # core for each of two processes, this makes an exchange of messages ten times slower. `SCHED_BATCH` is Linux only.
    if not hasattr(os, "SCHED_BATCH") or not THREADS.is_dir():
        return
    for thread in THREADS.iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or permission is denied
            if (thread / "comm").read_bytes().startswith(GLOO_THREAD_PREFIX):
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wait_for(works: Iterable[AsyncWork]) -> None:
    for work in works:
        _translate_errors(work.wait)


def _translate_errors(function: Callable[..., T], *args: Any, **options: Any) -> T:
    try:
        return function(*args, **options)
    except ClusterError:  # from a nested call
        raise
    except (RuntimeError, ValueError) as error:
        raise ClusterError(
            f"another process of the partition has ended or cannot be reached ({reason(error)}); check its output"
        ) from error


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
        synchronise(self._device)
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
    return tuple(sorted({task.device for task in tasks}))
