"""Calls of ATen operators as plain data: which function, and its arguments without tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bow.errors import CaptureError

_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def encoded(argument: Any, operand: Callable[[Any], int | None]) -> Any:
    """An argument as JSON can hold it."""
    if (number := operand(argument)) is not None:
        return {"operand": number}
    if isinstance(argument, (list, tuple)):
        return [encoded(each, operand) for each in argument]
    if isinstance(argument, torch.device):
        return {"device": True}  # each process has a device of its own
    if isinstance(argument, _TORCH):
        return {"torch": str(argument).removeprefix("torch.")}
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    raise CaptureError(
        f"an operator has a {type(argument).__name__} as an argument, which no graph can hold; use another operator"
    )


def decoded(argument: Any, operands: Sequence[Tensor | None], device: torch.device) -> Any:
    """What `encoded` was given, with tensors in the place of their numbers."""
    if isinstance(argument, (list, tuple)):
        return [decoded(each, operands, device) for each in argument]
    if not isinstance(argument, dict):
        return argument
    if "operand" in argument:
        return operands[argument["operand"]]
    return device if "device" in argument else getattr(torch, argument["torch"])


def function(name: str) -> Any:
    """The operator of a name such as `aten.relu.default`."""
    namespace, operator, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload)
