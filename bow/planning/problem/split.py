"""How operators are split and placed, and which splits are legal."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bow.planning.problem.box import Box, tiles
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.rule import Rules


@dataclass(frozen=True)
class Split:
    """Into which tiles an operator is cut, and where they are computed.

    Attributes:
        degrees: by dimension of the operator's first output: into how many parts.
        devices: by tile, the last dimension's side by side: the number of its device; several may have the same.
    """

    degrees: tuple[int, ...]
    devices: tuple[int, ...]

    @property
    def num_tiles(self) -> int:
        """How many tiles there are."""
        return math.prod(self.degrees)


def tiles_of(graph: OperatorGraph, operator: PlanOperator, split: Split) -> Iterator[Box]:
    """The boxes of an operator's first output, in the order of `split.devices`."""
    return tiles(graph.output_shape(operator), split.degrees)


def everything_on(graph: OperatorGraph, device: int = 0) -> tuple[Split, ...]:
    """Every operator whole, on one device."""
    return tuple(Split((1,) * len(graph.output_shape(operator)), (device,)) for operator in graph.operators)


def illegal(graph: OperatorGraph, operator: PlanOperator, split: Split, num_devices: int, rules: Rules) -> str | None:
    """Why an operator cannot be split so; None where it can.

    Search, import and runtime all ask this function: what is legal, runs.
    """
    dimensions = rules.dimensions(operator, graph)
    name = f"operator {operator.name!r}"
    if len(split.degrees) != len(dimensions):
        return f"{name} has {len(dimensions)} dimensions, got {len(split.degrees)} degrees; give one for each"
    for dimension, degree in zip(dimensions, split.degrees, strict=True):
        if degree < 1:
            return f"a degree must be at least 1, got {degree} for {dimension.name} of {name}"
        if degree > max(1, dimension.size):
            return (
                f"{name} has a {dimension.name} of {dimension.size}, got degree {degree}; give at most {dimension.size}"
            )
        if degree > 1 and dimension.kind is None:
            return f"{name} ({operator.kind}) cannot be split by {dimension.name}, got degree {degree}; give 1"
    if len(split.devices) != split.num_tiles:
        return f"{name} is split into {split.num_tiles} tiles, got {len(split.devices)} devices; give one for each"
    wrong = next((device for device in split.devices if not 0 <= device < num_devices), None)
    if wrong is not None:
        return f"{name} has a tile on device {wrong}, and there are {num_devices} (0 to {num_devices - 1})"
    return None
