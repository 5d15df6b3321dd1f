"""What a planner decides: a split of every operator, for one graph."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from bow.errors import ScheduleError
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.split import Split, illegal
from bow.planning.rules.rule import Rules

FORMAT = "bow placed strategy"
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
        >>> strategy = Partition("0123456789abcdef", (Split((2, 1), (0, 1)), Split((), (0,))), learners=2)
        >>> Partition.from_json(strategy.to_json()) == strategy
        True

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 4.
    """

    graph_hash: str
    splits: tuple[Split, ...]
    learners: int = 1

    def check(self, graph: OperatorGraph, num_devices: int, rules: Rules) -> None:
        """Refuse a strategy that cannot be carried out."""
        if self.graph_hash != graph.hash:
            raise ScheduleError(
                f"the strategy is for graph {self.graph_hash}, this model's is {graph.hash}; "
                "plan again, with the same model, batch size and loss as in training"
            )
        if len(self.splits) != len(graph.operators):
            raise ScheduleError(
                f"the strategy has {len(self.splits)} splits for {len(graph.operators)} operators; give each one"
            )
        size = self.devices_per_learner(num_devices)
        for operator, split in zip(graph.operators, self.splits, strict=True):
            wrong = illegal(graph, operator, split, size, rules)
            if wrong is not None:
                raise ScheduleError(wrong)

    def devices_per_learner(self, num_devices: int) -> int:
        """How many devices a learner has."""
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
        """The strategy as JSON, with a version."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Partition":
        """The strategy that `to_json` wrote."""
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ScheduleError(f"the strategy is not JSON ({error}); plan again") from error
        if not isinstance(read, dict) or read.get("format") != FORMAT:
            raise ScheduleError(f'the text is not a "{FORMAT}"; give one that Partition.to_json wrote')
        if read.get("version") != VERSION:
            raise ScheduleError(f"the strategy has version {read.get('version')}, this bow reads {VERSION}; plan again")
        try:
            splits = tuple(Split(_whole(split["degrees"]), _whole(split["devices"])) for split in read["splits"])
            (learners,) = _whole([read["learners"]])
            return cls(str(read["graph_hash"]), splits, learners)
        except (KeyError, TypeError) as error:
            raise ScheduleError(f"the strategy is damaged ({type(error).__name__}: {error}); plan again") from error


def _whole(numbers: Any) -> tuple[int, ...]:
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise TypeError(f"{numbers} are not whole numbers")
    return tuple(numbers)
