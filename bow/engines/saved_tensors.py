"""Keep tensors saved for the backward pass in host memory, for models that do not fit otherwise.

Tensors saved by the forward pass are copied to pinned host memory on a separate stream, and their device memory is
freed. The backward pass uses them in reverse order: they are copied back, on another stream, one or two ahead of their
use. Both directions overlap with the computation.

A tensor saved several times (the result of a ReLU is the input of the next convolution) is copied once. A tensor that
is only a part of its allocation (a slice; query, key and value in one) is first copied on the device, in the order of
the computation, since the other parts may still be written to. That takes a few percent of the time of the copy to the
host.

Events order everything, in this cycle:

    computation  --saved-->  copy to the host  --on the host-->  computation frees the memory
    computation  --has room-->  copy to the device  --back-->  computation uses it

No other events are needed: a copy to the device waits for the computation, which has waited for the copy to the host;
pinned memory is rewritten in a later forward pass, which runs after everything that the computation has waited for.
"""

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from bow.devices import Event, StreamDevice
from bow.errors import SettingError, reason


class StridedView(NamedTuple):
    """Layout of a tensor in its allocation; a dimension of stride 0, as made by `expand`, counts as size 1."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def compact(self) -> tuple[int, ...]:
        strides, step = list(self.strides), 1
        for dimension in self._from_fastest():
            strides[dimension] = step
            step *= self.shape[dimension]
        return tuple(strides)

    @property
    def span(self) -> int:
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def overlaps(self) -> bool:
        """Whether elements share memory, as the windows of `unfold` do."""
        reach = 1
        for dimension in self._from_fastest():
            if self.strides[dimension] < reach:
                return True
            reach += (self.shape[dimension] - 1) * self.strides[dimension]
        return False

    def _from_fastest(self) -> list[int]:
        dimensions = [dimension for dimension, size in enumerate(self.shape) if size > 1]
        return sorted(dimensions, key=lambda dimension: self.strides[dimension])


def view_of(tensor: Tensor) -> StridedView:
    shape = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return StridedView(tuple(shape), tensor.stride(), int(tensor.storage_offset()))


MIN_BYTES = 2**20  # smaller tensors stay on the device: copying them costs more time than the memory is worth
MAX_SPREAD = 8  # largest span of a tensor relative to its elements; one with more gaps stays on the device
MAX_IN_FLIGHT = 2  # copies to the host in flight; with one more the computation waits for the oldest
PREFETCH = 2  # tensors to copy back before they are needed
MAX_PREFETCHED = 4  # if more are copied back, the oldest unused ones are dropped: they will not be requested
# Autograd's own message; autograd cannot check what hooks have saved.
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation; a step that works "
    "on a copy of it instead can be differentiated"
)


@dataclass(eq=False)
class _PinnedSlot:
    """Pinned memory, with events of the last copies to and from it."""

    memory: Tensor
    on_host: Event
    back: Event


@dataclass(eq=False)
class _Parked:
    """Elements that are in pinned memory, or on their way there."""

    index: int  # within a learning task
    slot: _PinnedSlot | None  # where they are; None once the task has ended
    count: int  # how many
    dtype: torch.dtype  # tensors saved from them may have another
    flat: Tensor | None = None  # on the device, if they can be used there
    changed: bool = False  # whether they were written to while they were being copied


class _Leaving(NamedTuple):
    """A copy to the host in flight: its device memory must not be freed before it has arrived."""

    parked: _Parked
    slot: _PinnedSlot
    flat: Tensor
    version: int


class _Known(NamedTuple):
    """The last parked copy of an allocation or of a part of it."""

    # Held weakly: its memory can be freed, but no later allocation gets its address, which is the key of this entry.

    allocation: StorageWeakRef
    version: int
    parked: "weakref.ref[_Parked]"


class _Saved(NamedTuple):
    """Handle that autograd holds instead of a tensor; nothing else keeps the copies of the tensor alive."""

    parked: _Parked  # its elements, or those of its whole allocation
    position: int  # among the tensors saved within a learning task
    dtype: torch.dtype  # of the tensor
    shape: torch.Size  # of the tensor
    view: StridedView  # layout within them
    spread: bool  # whether to restore gaps between its elements


class _Kept(NamedTuple):
    """Handle that autograd holds instead of a tensor that stays on the device."""

    tensor: Tensor
    version: int


class Offload:
    """Offload the tensors that one learning task at a time saves for its backward pass."""

    # Learners that run at the same time need one each; learners in turn on the same stream share one and its pinned
    # memory.

    def __init__(self, device: StreamDevice, name: str = "offload", min_bytes: int = MIN_BYTES) -> None:
        self._device = device
        self._name = name
        self._min_bytes = min_bytes
        self._to_host = device.stream(f"{name} to the host")
        self._from_host = device.stream(f"{name} to the device")
        self._saved = device.event(f"{name}: saved")
        self._has_room = device.event(f"{name}: has room")
        self._idle = device.event(f"{name}: idle")
        self._pool: dict[int, list[_PinnedSlot]] = {}
        self._stays: set[int] = set()
        self._slots: list[_PinnedSlot] = []
        self._order: list[weakref.ref[_Parked]] = []
        self._known: dict[Hashable, _Known] = {}
        self._in_flight: deque[_Leaving] = deque()
        self._prefetched: dict[int, Tensor] = {}

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory that is reserved while no task runs; the next task reuses it."""
        return sum(slot.memory.nbytes for slots in self._pool.values() for slot in slots)

    @contextlib.contextmanager
    def task(self, stays: Iterable[Tensor]) -> Iterator[None]:
        assert not self._slots, "one task at a time"
        self._stays = {_allocation_of(tensor) for tensor in stays}
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
            raise SettingError(
                f"offload=True does not work with this learning task ({reason(error)}); leave it out"
            ) from error
        finally:
            self._end()

    def close(self) -> None:
        """Wait for the copies, and free the pinned memory; the next task reallocates it."""
        for stream in (self._to_host, self._from_host):
            stream.record(self._idle)
            self._idle.synchronize()
        self._pool.clear()

    # Forward

    @torch.no_grad()
    def _pack(self, tensor: Tensor) -> _Saved | _Kept:
        tensor = tensor.detach()
        if self._can_leave(tensor):
            view = view_of(tensor)
            count = math.prod(view.shape)
            if count * tensor.itemsize == tensor.untyped_storage().nbytes() and not view.overlaps:
                return self._pack_whole(tensor, view, count)
            if count * tensor.itemsize >= self._min_bytes and view.span <= MAX_SPREAD * count and not view.overlaps:
                return self._pack_part(tensor, view, count)
        return _Kept(tensor, tensor._version)

    def _can_leave(self, tensor: Tensor) -> bool:
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            return False
        if tensor.device != self._device.torch_device or tensor.is_conj() or tensor.is_neg():
            return False
        return tensor.untyped_storage().nbytes() >= self._min_bytes and _allocation_of(tensor) not in self._stays

    def _pack_whole(self, tensor: Tensor, view: StridedView, count: int) -> _Saved:
        parked = self._park((_allocation_of(tensor),), tensor, lambda: tensor.as_strided((count,), (1,), 0))
        return self._in_order(parked, tensor, view, spread=False)

    def _pack_part(self, tensor: Tensor, view: StridedView, count: int) -> _Saved:
        """Save a tensor that is a part of its allocation, without gaps."""
        compact = view._replace(strides=view.compact, offset=0)

        def copied() -> Tensor:
            flat = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
            flat.as_strided(*compact).copy_(tensor.as_strided(*view))
            return flat

        parked = self._park((_allocation_of(tensor), tensor.dtype, view), tensor, copied)
        return self._in_order(parked, tensor, view._replace(offset=0), spread=compact.strides != view.strides)

    def _in_order(self, parked: _Parked, tensor: Tensor, view: StridedView, *, spread: bool) -> _Saved:
        """Record the order of saving: the backward pass requests tensors in reverse."""
        self._order.append(weakref.ref(parked))
        return _Saved(parked, len(self._order) - 1, tensor.dtype, tensor.shape, view, spread)

    def _park(self, key: Hashable, tensor: Tensor, flat: Callable[[], Tensor]) -> _Parked:
        """Return the parked copy of the same memory in the same version; begin to copy it if there is none."""
        known = self._known.get(key)
        parked = known.parked() if known is not None and known.version == tensor._version else None
        if parked is None:
            parked = self._copy_to_host(flat())
            allocation = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._known[key] = _Known(allocation, tensor._version, weakref.ref(parked))
        return parked

    def _copy_to_host(self, flat: Tensor) -> _Parked:
        slot = self._take(flat.nbytes)
        self._device.caller().record(self._saved)
        self._to_host.wait(self._saved)
        with self._device.on(self._to_host):
            _like(slot, flat.dtype, len(flat)).copy_(flat, non_blocking=True)
        self._to_host.record(slot.on_host)
        parked = _Parked(len(self._slots), slot, len(flat), flat.dtype)
        self._slots.append(slot)
        self._in_flight.append(_Leaving(parked, slot, flat, flat._version))
        if len(self._in_flight) > MAX_IN_FLIGHT:
            self._release_oldest()
        return parked

    def _release_oldest(self) -> _Leaving:
        # Its memory belongs to the computation's stream, where the next owner writes after this wait. The host never
        # waits, and the memory held does not depend on how far it runs ahead.
        leaving = self._in_flight.popleft()
        self._device.caller().wait(leaving.slot.on_host)
        leaving.parked.changed = leaving.flat._version != leaving.version
        return leaving

    # Backward

    @torch.no_grad()
    def _unpack(self, packed: _Saved | _Kept) -> Tensor:
        if isinstance(packed, _Kept):
            if packed.tensor._version != packed.version:
                raise RuntimeError(MODIFIED)
            return packed.tensor
        flat = self._on_device(packed.parked).view(packed.dtype)
        self._fetch_ahead(packed.position)
        view = packed.view
        if packed.spread:
            spread = torch.empty_strided(view.shape, view.strides, dtype=packed.dtype, device=flat.device)
            flat = spread.copy_(flat.as_strided(view.shape, view.compact))
        return flat.as_strided(packed.shape, view.strides, view.offset)

    def _on_device(self, parked: _Parked) -> Tensor:
        while self._in_flight:  # still on the device: no need to copy it back
            leaving = self._release_oldest()
            leaving.parked.flat = leaving.flat
        if parked.changed:
            raise RuntimeError(MODIFIED)
        if parked.slot is None:
            raise RuntimeError(
                "what a learning task saved for its backward pass is freed when the task ends (offload=True)"
            )
        if parked.flat is None:
            if parked.index not in self._prefetched:
                self._fetch(parked, parked.slot)
            parked.flat = self._prefetched.pop(parked.index)
            self._device.caller().wait(parked.slot.back)
        return parked.flat

    def _fetch_ahead(self, position: int) -> None:
        """Begin to copy back the next tensors, and drop prefetched ones that were not requested."""
        upcoming: list[_Parked] = []
        for earlier in range(position - 1, -1, -1):
            parked = self._order[earlier]()
            if parked is not None and parked.flat is None and parked not in upcoming:
                upcoming.append(parked)
            if len(upcoming) == PREFETCH:
                break
        for parked in upcoming:
            if parked.index not in self._prefetched and parked.slot is not None:
                self._fetch(parked, parked.slot)
        while len(self._prefetched) > MAX_PREFETCHED:
            self._drop_prefetched(next(iter(self._prefetched)))

    def _fetch(self, parked: _Parked, slot: _PinnedSlot) -> None:
        """Copy back, into memory of the computation's stream, where it is used and freed."""
        flat = torch.empty(parked.count, dtype=parked.dtype, device=self._device.torch_device)
        self._device.caller().record(self._has_room)  # earlier uses of this memory have ended by then
        self._from_host.wait(self._has_room)
        with self._device.on(self._from_host):
            flat.copy_(_like(slot, parked.dtype, parked.count), non_blocking=True)
        self._from_host.record(slot.back)
        self._prefetched[parked.index] = flat

    def _drop_prefetched(self, index: int) -> None:
        """Free memory that is being copied to and that was not requested."""
        self._device.caller().wait(self._slots[index].back)
        del self._prefetched[index]

    def _end(self) -> None:
        """Have the computation wait for all outstanding copies; then memory on both sides is free."""
        while self._in_flight:
            self._release_oldest()
        for index in list(self._prefetched):
            self._drop_prefetched(index)
        for reference in self._order:
            if (parked := reference()) is not None:  # the step has kept an autograd graph
                parked.slot = parked.flat = None
        for slot in self._slots:
            self._pool.setdefault(slot.memory.nbytes, []).append(slot)
        self._slots.clear()
        self._order.clear()
        self._known.clear()

    # Pinned memory

    def _take(self, num_bytes: int) -> _PinnedSlot:
        size = 2 ** (num_bytes - 1).bit_length()  # as torch's allocator of pinned memory does
        free = self._pool.get(size)
        if free:
            return free.pop()
        try:
            memory = self._device.pinned((size,), torch.uint8)
        except RuntimeError as error:
            raise SettingError(
                f"offload=True finds no {size} bytes of host memory to pin more ({reason(error)}); use fewer "
                "learners or a smaller batch_size"
            ) from error
        return _PinnedSlot(
            memory, self._device.event(f"{self._name}: on the host"), self._device.event(f"{self._name}: back")
        )


def _allocation_of(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _like(slot: _PinnedSlot, dtype: torch.dtype, count: int) -> Tensor:
    return slot.memory[: count * dtype.itemsize].view(dtype)
