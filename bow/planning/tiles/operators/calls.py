"""Operators exported by PyTorch, tiles, and the functions that translate the former and compute the latter."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bow.errors import CaptureError
from bow.planning.problem.box import Box, sizes, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.rule import Rule, Shapes, places, shapes_of
from bow.planning.tiles.graph_builder import GraphBuilder, Shape, Value

Result: TypeAlias = Value | tuple[Value, ...] | None  # translation of an operator's results; None: not translatable


@dataclass(frozen=True)
class Exported:
    """An operator that PyTorch exported."""

    function: str  # full name, such as `aten.relu.default`
    arguments: Mapping[str, Any]  # by name, including defaults; tensors are values of the graph
    keywords: frozenset[str]  # names of the keyword-only arguments
    outputs: tuple[tuple[Shape, torch.dtype], ...]  # shapes and dtypes

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def name(self) -> str:
        """Name without namespace and overload, such as `relu`."""
        return self.function.split(".")[1]

    @property
    def shape(self) -> Shape:
        return self.outputs[0][0]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def operands(self) -> list[Value]:
        """The tensors among the arguments, in order."""
        return [value for argument in self.arguments.values() for value in _values(argument)]

    def by_name(self, **others: Any) -> dict[str, Any]:
        """Return the attributes for `call_by_name`, with some arguments replaced."""
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
    """Bind the arguments of an operator call, filling in defaults."""
    given: dict[str, Any] = {}
    for place, parameter in enumerate(function._schema.arguments):
        default = parameter.default_value if parameter.has_default_value() else None
        given[parameter.name] = arguments[place] if place < len(arguments) else keywords.get(parameter.name, default)
    by_name = frozenset(each.name for each in function._schema.arguments if each.kwarg_only)
    tensors = made if isinstance(made, (tuple, list)) else [made]
    return Exported(name, given, by_name, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))


Translate: TypeAlias = Callable[[GraphBuilder, Exported], Result]

TRANSLATIONS: dict[str, Translate] = {}  # by the operator's name without overload, such as `relu`


def translation(*names: str) -> Callable[[Translate], Translate]:
    def register(translate: Translate) -> Translate:
        TRANSLATIONS.update(dict.fromkeys(names, translate))
        return translate

    return register


def not_none(*values: Value | None) -> list[Value]:
    return [value for value in values if value is not None]


def repeated(value: Any, count: int) -> list[int]:
    """Expand a number, or a list of one, to one number per dimension."""
    given = [value] if isinstance(value, int) else list(value)
    return given * count if len(given) == 1 else given


def axis(dim: int, rank: int) -> int:
    return dim % max(rank, 1)


def _values(argument: Any) -> list[Value]:
    if isinstance(argument, Value):
        return [argument]
    return [value for each in argument for value in _values(each)] if isinstance(argument, (list, tuple)) else []


_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def encoded(argument: Any, operand: Callable[[Any], int | None]) -> Any:
    """Encode an argument as JSON-compatible data; `operand` returns a tensor's number, or None for non-tensors."""
    if (number := operand(argument)) is not None:
        return {"operand": number}
    if isinstance(argument, (list, tuple)):
        return [encoded(each, operand) for each in argument]
    if isinstance(argument, torch.device):
        return {"device": True}  # replaced by each process's own device
    if isinstance(argument, _TORCH):
        return {"torch": str(argument).removeprefix("torch.")}
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    raise CaptureError(
        f"an operator has an argument of type {type(argument).__name__}, which an operator graph cannot represent; "
        "use another operator"
    )


def decoded(argument: Any, operands: Sequence[Tensor | None], device: torch.device) -> Any:
    """Invert `encoded`, replacing numbers by operands."""
    if isinstance(argument, (list, tuple)):
        return [decoded(each, operands, device) for each in argument]
    if not isinstance(argument, dict):
        return argument
    if "operand" in argument:
        return operands[argument["operand"]]
    return device if "device" in argument else getattr(torch, argument["torch"])


def function(name: str) -> Any:
    namespace, operator, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload)


@dataclass(frozen=True)
class Tile:
    """A part of an operator that one device computes."""

    kind: str  # of the operator
    attributes: Mapping[str, Any]  # of the operator
    shapes: Shapes  # of the whole operands and the whole output
    box: Box  # of the first output
    operands: tuple[Box | None, ...]  # boxes that it reads, in the order of the operator's arguments; None: nothing

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Shape of the tile's part of the first output."""
        return sizes(self.box)

    @cached_property
    def is_whole(self) -> bool:
        return self.box == whole(self.shapes.output)


def tile_of(graph: OperatorGraph, operator: PlanOperator, rule: Rule, box: Box) -> Tile:
    boxes = {
        "input": rule.input_boxes(operator, graph, box),
        "weight": rule.weight_boxes(operator, graph, box),
    }
    operands = tuple(boxes[kind][index] for kind, index in places(operator))
    return Tile(operator.kind, operator.attributes, shapes_of(operator, graph), box, operands)


Operands: TypeAlias = Sequence[Tensor | None]  # the boxes that a tile reads, in the order of the operator's arguments
Outputs: TypeAlias = tuple[Tensor, ...]
LocalCall: TypeAlias = Callable[[Tile, Operands, int], Outputs]  # computes a tile; seed: equal for all tiles in a step


@dataclass(frozen=True)
class SummedCall:
    """Computes a tile in two phases, with an exchange of moments between all tiles of a sum."""

    # Differentiable through both phases and the exchange.

    moments: Callable[[Tile, Operands], Tensor]  # a tile's moments, of the same shape for all tiles of a sum
    finish: Callable[[Tile, Operands, Tensor], Outputs]  # the outputs, from the moments of all tiles, stacked in order
    update: Callable[[Tile, Tensor, Mapping[str, Tensor]], None]  # update the sum's running statistics in place
    # Compute a tile that is the only one of its sum, and update its running statistics, if any.
    single_tile: Callable[[Tile, Operands, Mapping[str, Tensor] | None], Outputs]


Call: TypeAlias = LocalCall | SummedCall

C = TypeVar("C", bound=LocalCall)
CALLS: dict[str, Call] = {}  # by kind; operators of other kinds are not split, and called by their name


def tile_function(*kinds: str) -> Callable[[C], C]:
    def register(call: C) -> C:
        CALLS.update(dict.fromkeys(kinds, call))
        return call

    return register


def call_of(kind: str) -> Call:
    return CALLS.get(kind, call_by_name)


@tile_function("pointwise", "reduction")
def call_by_name(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Call the operator named in the attributes with the tile's operands."""
    # Attributes: `function`, `arguments` and `keywords`, in the format of `encoded`.
    attributes = tile.attributes
    device = next((operand.device for operand in operands if operand is not None), torch.device("cpu"))
    arguments = decoded(attributes["arguments"], operands, device)
    keywords = {name: decoded(value, operands, device) for name, value in attributes["keywords"].items()}
    made: Any = function(attributes["function"])(*arguments, **keywords)
    return (made,) if isinstance(made, Tensor) else tuple(made)


def plain(function: Callable[..., Tensor], *names: str) -> LocalCall:
    """Wrap a function whose arguments are all operands, none of them None, followed by some attributes."""

    def call(tile: Tile, operands: Operands, seed: int) -> Outputs:
        return (function(*required(operands), *(tile.attributes[name] for name in names)),)

    return call


def required(operands: Operands) -> list[Tensor]:
    found = [operand for operand in operands if operand is not None]
    assert len(found) == len(operands)
    return found


def padded(tensor: Tensor, amounts: Sequence[tuple[int, int]], value: float) -> Tensor:
    """Pad the last dimensions of a tensor with a constant; negative amounts crop."""
    ends = [each for pair in reversed(amounts) for each in pair]
    larger = F.pad(tensor, [max(0, each) for each in ends], value=value)
    # Two calls, since F.pad crops first and fails if it would crop more than the unpadded tensor has.
    return F.pad(larger, [min(0, each) for each in ends]) if min(ends, default=0) < 0 else larger
