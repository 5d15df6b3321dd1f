"""Operators as PyTorch exports them: what translations are given, and calls by name as plain data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bow.errors import CaptureError
from bow.planning.tiles.graph_builder import GraphBuilder, Shape, Value

Result: TypeAlias = Value | tuple[Value, ...] | None
"""What takes the place of an exported operator's results; None: it is not to be translated so."""


@dataclass(frozen=True)
class Exported:
    """An operator that PyTorch exported."""

    function: str  # its name, such as `aten.relu.default`
    arguments: Mapping[str, Any]  # by name, those that were left out too; tensors are values of the graph
    keywords: frozenset[str]  # the names of those that can be given by name only
    outputs: tuple[tuple[Shape, torch.dtype], ...]  # sizes and types of what it makes

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def name(self) -> str:
        """The operator's without its namespace and its overload, such as `relu`."""
        return self.function.split(".")[1]

    @property
    def shape(self) -> Shape:
        """The sizes of the first tensor that it makes."""
        return self.outputs[0][0]

    @property
    def size(self) -> int:
        """How many elements that has."""
        return math.prod(self.shape)

    @property
    def operands(self) -> list[Value]:
        """The tensors among the arguments, in their order."""
        return [value for argument in self.arguments.values() for value in _values(argument)]

    def by_name(self, **others: Any) -> dict[str, Any]:
        """The attributes with which the operator is called by its name."""
        count = 0

        def number(argument: Any) -> int | None:
            nonlocal count
            if not isinstance(argument, Value):
                return None
            count += 1
            return count - 1

        written = {name: encoded(others.get(name, value), number) for name, value in self.arguments.items()}
        return {
            "function": self.function,
            "arguments": [value for name, value in written.items() if name not in self.keywords],
            "keywords": {name: value for name, value in written.items() if name in self.keywords and value is not None},
        }


def exported_call(
    name: str, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], made: Any
) -> Exported:
    """A call of an operator."""
    given: dict[str, Any] = {}
    for place, parameter in enumerate(function._schema.arguments):
        default = parameter.default_value if parameter.has_default_value() else None
        given[parameter.name] = arguments[place] if place < len(arguments) else keywords.get(parameter.name, default)
    by_name = frozenset(each.name for each in function._schema.arguments if each.kwarg_only)
    tensors = made if isinstance(made, (tuple, list)) else [made]
    return Exported(name, given, by_name, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))


Translate: TypeAlias = Callable[[GraphBuilder, Exported], Result]

TRANSLATIONS: dict[str, Translate] = {}  # By the operator's name without its overload, such as `relu`


def translates(*names: str) -> Callable[[Translate], Translate]:
    """Put a function into the table."""

    def register(translate: Translate) -> Translate:
        TRANSLATIONS.update(dict.fromkeys(names, translate))
        return translate

    return register


def present(*values: Value | None) -> list[Value]:
    """Those that are there."""
    return [value for value in values if value is not None]


def repeated(value: Any, count: int) -> list[int]:
    """A number for each dimension, of which PyTorch takes one for all."""
    given = [value] if isinstance(value, int) else list(value)
    return given * count if len(given) == 1 else given


def axis(dim: int, rank: int) -> int:
    """A dimension, counted from the first."""
    return dim % max(rank, 1)


def _values(argument: Any) -> list[Value]:
    if isinstance(argument, Value):
        return [argument]
    return [value for each in argument for value in _values(each)] if isinstance(argument, (list, tuple)) else []


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
