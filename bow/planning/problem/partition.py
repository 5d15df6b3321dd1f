"""What a planner decides: how every operator of a graph is split, and which devices compute the tiles."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bow.errors import ScheduleError
from bow.planning.problem.box import Box, tiles
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.rule import Rules


@dataclass(frozen=True)
class Split:
    """Into which tiles an operator is cut, and where they are computed."""

    degrees: tuple[int, ...]  # by dimension of the operator's first output: into how many parts
    # by tile, the last dimension's side by side: the number of its device; several may have the same
    devices: tuple[int, ...]

    @property
    def num_tiles(self) -> int:
        return math.prod(self.degrees)


def tiles_of(graph: OperatorGraph, operator: PlanOperator, split: Split) -> Iterator[Box]:
    """The boxes of an operator's first output, in the order of `split.devices`."""
    return tiles(graph.output_shape(operator), split.degrees)


def whole_on(graph: OperatorGraph, operator: PlanOperator, device: int) -> Split:
    """An operator that is not split."""
    return Split((1,) * len(graph.output_shape(operator)), (device,))


def everything_on(graph: OperatorGraph, device: int = 0) -> tuple[Split, ...]:
    """Every operator whole, on one device."""
    return tuple(whole_on(graph, operator, device) for operator in graph.operators)


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


FORMAT = "bow partition"
VERSION = 1


@dataclass(frozen=True)
class Partition:
    """A split of every operator, and how many learners repeat it.

    With k learners the devices are k groups of equal size, side by side by number. The splits are of the first group;
    every other group repeats them on its own devices for a learner of its own, with a batch of its own, and the
    learners are averaged once a step.

    Attributes:
        graph_hash: `OperatorGraph.hash` of the graph that it is for.
        splits: by operator.
        learners: how many groups there are.

    Example:
        >>> partition = Partition("0123456789abcdef", (Split((2, 1), (0, 1)), Split((), (0,))), learners=2)
        >>> Partition.from_json(partition.to_json()) == partition
        True

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 4.
    """

    graph_hash: str
    splits: tuple[Split, ...]
    learners: int = 1

    def check(self, graph: OperatorGraph, num_devices: int, rules: Rules) -> None:
        """Refuse a partition that cannot be carried out."""
        if self.graph_hash != graph.hash:
            raise ScheduleError(
                f"the partition is for graph {self.graph_hash}, this model's is {graph.hash}; "
                "plan again, with the same model, batch size and loss as in training"
            )
        if len(self.splits) != len(graph.operators):
            raise ScheduleError(
                f"the partition has {len(self.splits)} splits for {len(graph.operators)} operators; give each one"
            )
        size = self.devices_per_learner(num_devices)
        for operator, split in zip(graph.operators, self.splits, strict=True):
            wrong = illegal(graph, operator, split, size, rules)
            if wrong is not None:
                raise ScheduleError(wrong)

    def devices_per_learner(self, num_devices: int) -> int:
        if self.learners < 1:
            raise ScheduleError(f"learners must be at least 1, got {self.learners}")
        size, rest = divmod(num_devices, self.learners)
        if rest or not size:
            raise ScheduleError(
                f"{num_devices} devices cannot be divided among {self.learners} learners; "
                f"give learners a divisor of {num_devices}"
            )
        return size

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Partition":
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ScheduleError(f"the partition is not JSON ({error}); plan again") from error
        if not isinstance(read, dict) or read.get("format") != FORMAT:
            raise ScheduleError(f'the text is not a "{FORMAT}"; give one that Partition.to_json wrote')
        if read.get("version") != VERSION:
            raise ScheduleError(
                f"the partition has version {read.get('version')}, this bow reads {VERSION}; plan again"
            )
        try:
            splits = tuple(Split(_whole(split["degrees"]), _whole(split["devices"])) for split in read["splits"])
            (learners,) = _whole([read["learners"]])
            return cls(str(read["graph_hash"]), splits, learners)
        except (KeyError, TypeError) as error:
            raise ScheduleError(f"the partition is damaged ({type(error).__name__}: {error}); plan again") from error


def _whole(numbers: Any) -> tuple[int, ...]:
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise TypeError(f"{numbers} are not whole numbers")
    return tuple(numbers)
