"""Layout of the model's parameters in a row of the replica matrix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from bow.errors import OptimizerError

ALIGNMENT = 16  # rows are padded to a multiple of this many elements, so that every row starts on a 64-byte boundary

MEMORY_ORDER = "memory_order"  # entry of a state: the layout's `memory_order`
CHANNELS_LAST = (0, 2, 3, 1)  # dimensions of a convolution's weight from the slowest to the fastest


@dataclass(frozen=True)
class Slot:
    """One parameter's place in a row."""

    names: tuple[str, ...]  # several if it is tied
    offset: int
    shape: torch.Size
    order: tuple[int, ...]  # its dimensions from the slowest to the fastest in memory, as in channels_last

    @property
    def numel(self) -> int:
        return self.shape.numel()

    def view(self, piece: Tensor) -> Tensor:
        """View a flat piece of a row as the parameter, strides included."""
        if self.order == tuple(range(len(self.shape))):
            return piece.view(self.shape)
        stored = piece.view([self.shape[d] for d in self.order])
        return stored.permute([self.order.index(d) for d in range(len(self.shape))])

    def of(self, row: Tensor) -> Tensor:
        return self.view(row[self.offset : self.offset + self.numel])


class ParameterLayout:
    """Maps parameter names to `(offset, shape)` in a flat row; every group of the optimizer is one slice of it."""

    # With `memory_format="channels_last"`, weights of four dimensions have that order, whatever order the model has.
    # The padding at the end belongs to the last group; it starts at zero and its gradient is zero.

    def __init__(
        self, model: nn.Module, groups: Sequence[Sequence[nn.Parameter]], memory_format: str | None = None
    ) -> None:
        names = _names(model)
        offset = 0
        self.slots: list[Slot] = []
        self.group_slices: list[slice] = []
        self.group_slots: list[list[Slot]] = []
        for group in groups:
            start = offset
            slots = []
            for parameter in group:
                if id(parameter) not in names:
                    raise OptimizerError(
                        f"the optimizer updates a tensor of shape {tuple(parameter.shape)} that is not a parameter "
                        "of the model; build its groups from the parameters that the factory is given"
                    )
                is_last = memory_format == "channels_last" and parameter.dim() == 4
                order = CHANNELS_LAST if is_last else memory_order(parameter)
                slots.append(Slot(tuple(names[id(parameter)]), offset, parameter.shape, order))
                offset += parameter.numel()
            self.slots += slots
            self.group_slots.append(slots)
            self.group_slices.append(slice(start, offset))
        self.names = frozenset(name for slot in self.slots for name in slot.names)
        self.num_parameters = offset
        self.padding = -offset % ALIGNMENT
        self.row_length = offset + self.padding
        self.group_slices[-1] = slice(self.group_slices[-1].start, self.row_length)
        self._sizes = [slot.numel for slot in self.slots] + ([self.padding] if self.padding else [])

    @property
    def memory_order(self) -> dict[str, list[int]]:
        """Order of dimensions in memory by parameter name, of those with an unusual one."""
        slots = (slot for slot in self.slots if slot.order != tuple(range(len(slot.shape))))
        return {slot.names[0]: list(slot.order) for slot in slots}

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Return views of a row `[parameters]` by parameter name, tied ones under each; differentiable in the row."""
        named: dict[str, Tensor] = {}
        for slot, piece in zip(self.slots, torch.split(row, self._sizes), strict=False):
            named.update(dict.fromkeys(slot.names, slot.view(piece)))
        return named

    def fill(self, row: Shaped[Tensor, " parameters"], model: nn.Module) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for name, view in self.views(row).items():
            view.copy_(parameters[name].detach())


def _names(model: nn.Module) -> dict[int, list[str]]:
    """Return the names of each parameter by its id: several if it is tied, one if its module is used twice."""
    names: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(f"{prefix}.{key}".lstrip("."))
    return names


def memory_order(parameter: Tensor) -> tuple[int, ...]:
    """Return dimensions from the slowest to the fastest; logical order if the memory has gaps or overlaps."""
    # Of equal strides, the dimension of size 1 is the faster one: a convolution of one channel stays in channels_last,
    # which decides on the kernels of what follows.
    strides, shape = parameter.stride(), parameter.shape
    order = tuple(sorted(range(parameter.dim()), key=lambda d: (-strides[d], shape[d] == 1, d)))
    dense = parameter.permute(order).is_contiguous()
    return order if dense else tuple(range(parameter.dim()))


def other_order(state: Mapping[str, Any], layout: ParameterLayout) -> str | None:
    """Return a message why rows of a state with another memory order cannot be loaded; None if they can."""
    own = layout.memory_order
    was: Mapping[str, list[int]] = state[MEMORY_ORDER]

    def in_memory(slot: Slot, orders: Mapping[str, list[int]]) -> list[int]:
        usual = list(range(len(slot.shape)))
        return [d for d in orders.get(slot.names[0], usual) if slot.shape[d] > 1]  # others may be anywhere

    name = next((slot.names[0] for slot in layout.slots if in_memory(slot, was) != in_memory(slot, own)), None)
    if name is None:
        return None
    before, now = (order.get(name, "the usual one") for order in (was, own))
    how = 'engine=bow.Engine(memory_format="channels_last"), or with model.to(memory_format=torch.channels_last)'
    if list(CHANNELS_LAST) not in was.values():
        how = "an engine without memory_format, or with model.to(memory_format=torch.contiguous_format)"
    return (
        f"the state was made with parameter {name!r} in memory order {before}, this training has {now}; "
        f"resume with {how}"
    )
