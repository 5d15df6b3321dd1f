"""What operators keep from step to step besides weights: the running statistics of batch norm."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bow.planning.problem.box import Box, whole
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.tiles.program import Program, TileTask
from bow.planning.tiles.regions import region
from bow.planning.tiles.team import Team, wait_for


class DeviceBuffers:
    """The parts of buffers that one device keeps: those that belong to the sums which its tiles add to.

    Every device of a sum changes its copy by the same numbers in the same order, so that the copies stay equal.

    Args:
        graph: the operators.
        program: which tiles there are.
        values: the model's buffers, by name.
        team: the devices.
    """

    def __init__(self, graph: OperatorGraph, program: Program, values: Mapping[str, Tensor], team: Team) -> None:
        self._team = team
        self._names = {
            number: running
            for number, operator in enumerate(graph.operators)
            if (running := operator.attributes.get("running"))
        }
        tasks = [task for task in program.all_tasks if task.operator in self._names and task.sums is not None]
        self._sharing = _sharing(graph, self._names)
        self._first: dict[tuple[int, Box], int] = {}
        for task in tasks:
            assert task.sums is not None
            self._first.setdefault((task.operator, task.sums), task.device)
        own = {(task.operator, task.sums) for task in tasks if task.device == team.number}
        self._shapes = {name: (tuple(value.shape), value.dtype) for name, value in values.items()}
        self._kept = {
            (operator, box): {
                role: self._begun(operator, region(values[name], box, whole(values[name].shape)))
                for role, name in self._names[operator].items()
            }
            for operator, box in self._first
            if (operator, box) in own
        }

    def of(self, task: TileTask) -> Mapping[str, Tensor] | None:
        """What belongs to the sums of a task, ready to be changed; None: nothing."""
        assert task.sums is not None
        kept = self._kept.get((task.operator, task.sums))
        if kept is not None and (of_others := self._sharing[task.operator].of_others) != 1:
            for tensor in kept.values():
                tensor.mul_(of_others)
        return kept

    def gathered(self) -> dict[str, Tensor]:
        """The whole buffers by name; the same on every device, all of which ask for it."""
        found: dict[str, Tensor] = {}
        for (operator, box), device in self._first.items():
            for role, name in self._names[operator].items():
                if name not in found:
                    shape, dtype = self._shapes[name]
                    found[name] = torch.zeros(shape, dtype=dtype, device=self._team.device)
                if device == self._team.number:
                    own = self._kept[operator, box][role] * self._sharing[operator].of_later
                    region(found[name], box, whole(found[name].shape)).add_(own)
        self._team.sum_all(found.values())
        for tensor in found.values() if self._team.count > 1 else ():
            wait_for([self._team.sum_over_teams(tensor)])
            tensor.div_(self._team.count)
        return found

    @property
    def own(self) -> list[Tensor]:
        """What this device keeps, in an order that depends on the strategy only."""
        return [tensor for kept in self._kept.values() for tensor in kept.values()]

    def _begun(self, operator: int, value: Tensor) -> Tensor:
        sharing = self._sharing[operator]
        begun = value / (sharing.of_others or 1.0) if sharing.is_first else torch.zeros_like(value)
        return begun.to(self._team.device)


@dataclass(frozen=True)
class _Sharing:
    """How an operator shares running statistics with others that are the same layer.

    With K operators a step, `r <- (1 - m)^K r + sum_k m (1 - m)^(K - k) x_k`. The sum is taken apart: operator k keeps
    `b_k <- (1 - m)^K b_k + m x_k`, the first one the start as well, and `r = sum_k (1 - m)^(K - k) b_k`. So no device
    has to know what another one's tiles found.

    Attributes:
        is_first: whether it is the first of them in a step.
        of_others: what is left of a statistic behind all the others' changes, `(1 - m)^(K - 1)`.
        of_later: what is left of it behind those of the operators that follow, `(1 - m)^(K - k)`.
    """

    is_first: bool
    of_others: float
    of_later: float


def _sharing(graph: OperatorGraph, names: Mapping[int, Mapping[str, str]]) -> dict[int, _Sharing]:
    together: dict[tuple[str, ...], list[int]] = {}
    for number, running in names.items():
        together.setdefault(tuple(running.values()), []).append(number)
    found = {}
    for numbers in together.values():
        for place, number in enumerate(numbers):
            left = 1 - graph.operators[number].attributes["momentum"]
            found[number] = _Sharing(place == 0, left ** (len(numbers) - 1), left ** (len(numbers) - 1 - place))
    return found
