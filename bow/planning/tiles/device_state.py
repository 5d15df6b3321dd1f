"""State of one device: weight cells with their gradients, running statistics, and its part of the averaging."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bow.errors import SettingError
from bow.planning.problem.box import Box, common_refinement, contains, whole
from bow.planning.problem.operator_graph import OperatorGraph, TensorShape
from bow.planning.tiles.communication import AsyncWork, ProcessGroup, wait_for
from bow.planning.tiles.program import TileProgram, TileTask
from bow.planning.tiles.regions import Sums, put_together, region
from bow.sync import DropRule, Synchroniser, Timing, TwoLevel


@dataclass(frozen=True)
class Cell:
    """A part of a weight that every tile reads entirely or not at all."""

    # The borders of all boxes that tiles read cut a weight into cells. A cell on several devices is replicated, and its
    # gradient is summed. A cell that no tile reads is on the first reader: weight decay and momentum still change it.

    name: str  # of the weight
    box: Box  # in indices of the whole weight
    devices: tuple[int, ...]  # that hold it, in ascending order
    is_trained: bool  # whether it requires a gradient
    operator: int | None  # first operator that contributes a gradient, the last in the backward pass; None: no gradient


def cells_of(graph: OperatorGraph, program: TileProgram) -> tuple[Cell, ...]:
    """Return the cells of all weights, in the same order in every process."""
    readers: dict[str, list[tuple[Box, TileTask]]] = {}
    for task in program.all_tasks:
        for name, box in task.weights:
            readers.setdefault(name, []).append((box, task))
    return tuple(
        cell for name, reading in readers.items() for cell in _of_weight(name, reading, graph.weights[name], program)
    )


def _of_weight(
    name: str, reading: Sequence[tuple[Box, TileTask]], weight: TensorShape, program: TileProgram
) -> Iterator[Cell]:
    by_box: dict[Box, list[TileTask]] = {}
    by_task = [task for _, task in reading]
    for box, task in reading:
        by_box.setdefault(box, []).append(task)
    for cell in common_refinement([*by_box, whole(weight.shape)]):
        tasks = [task for box, of_box in by_box.items() if contains(box, cell) for task in of_box]
        gradients = [task.operator for task in tasks or by_task if task.operator in program.backward]
        devices = tuple(sorted({task.device for task in tasks or by_task[:1]}))
        yield Cell(name, cell, devices, weight.differentiable, min(gradients, default=None))


class DeviceWeights:
    """The weight cells of one device."""

    def __init__(self, cells: Sequence[Cell], values: Mapping[str, Tensor], group: ProcessGroup) -> None:
        self.parameters: dict[Cell, nn.Parameter] = {}
        for cell in (cell for cell in cells if group.rank in cell.devices):
            value = values[cell.name].detach()
            own = region(value, cell.box, whole(value.shape)).clone(memory_format=torch.contiguous_format)
            self.parameters[cell] = nn.Parameter(own, requires_grad=cell.is_trained)
        self._group = group
        self._all = cells
        self._shapes = {name: tuple(value.shape) for name, value in values.items()}
        self._dtypes = {name: value.dtype for name, value in values.items()}
        self._inside: dict[tuple[str, Box], list[Cell]] = {}
        self._read: dict[tuple[str, Box], Tensor] = {}
        self._gradients = Sums(self._zeros)
        self._sums: list[tuple[AsyncWork, Tensor, list[Cell]]] = []
        # By operator: cells with the same devices and dtype, which are summed in one message
        self._summed: dict[int, dict[tuple[tuple[int, ...], torch.dtype], list[Cell]]] = {}
        for cell in self.parameters:
            if cell.operator is not None and cell.is_trained and len(cell.devices) > 1:
                buckets = self._summed.setdefault(cell.operator, {})
                buckets.setdefault((cell.devices, self._dtypes[cell.name]), []).append(cell)
        group.prepare(cell.devices for cell in cells)

    def read(self, name: str, box: Box) -> Tensor:
        """Return a box of a weight as an autograd leaf, cached for the rest of the step."""
        key = name, box
        if key not in self._read:
            cells = self._cells_in(name, box)
            parts = [(cell.box, self.parameters[cell].detach()) for cell in cells]
            self._read[key] = put_together(box, parts).detach().requires_grad_(cells[0].is_trained)
        return self._read[key]

    def add_gradient(self, name: str, box: Box, gradient: Tensor) -> None:
        for cell in self._cells_in(name, box):
            self._gradients.add(cell, cell.box, cell.box, region(gradient, cell.box, box))

    def begin_sums(self, operator: int) -> None:
        """Start the all-reduces of gradients that are complete after an operator's backward pass."""
        for cells in self._summed.get(operator, {}).values():
            flat = torch.cat([self._gradients.take(cell, cell.box).reshape(-1) for cell in cells])
            self._sums.append((self._group.sum(flat, cells[0].devices), flat, cells))

    def finish_sums(self) -> None:
        """Wait for all gradient sums and set `.grad` of every parameter."""
        for work, flat, cells in self._sums:
            wait_for([work])
            parts = torch.split(flat, [self.parameters[cell].numel() for cell in cells])
            for cell, part in zip(cells, parts, strict=True):
                self._gradients.add(cell, cell.box, cell.box, part.view_as(self.parameters[cell]))
        self._sums.clear()
        seen = set[int]()
        for cell, parameter in self.parameters.items():
            has_gradient = cell.is_trained and cell.operator is not None
            gradient = self._gradients.take(cell, cell.box).contiguous() if has_gradient else None
            if gradient is not None:
                # The weights of a sum share one gradient, and optimizers may write to theirs.
                gradient = gradient.clone() if gradient.data_ptr() in seen else gradient
                seen.add(gradient.data_ptr())
            parameter.grad = gradient
        self._read.clear()

    def flattened(self) -> Tensor:
        """Move the trained parameters into one tensor, make them views of it, and return it."""
        trained = [parameter for cell, parameter in self.parameters.items() if cell.is_trained]
        if len({parameter.dtype for parameter in trained}) > 1:
            raise SettingError(
                "averaging needs a single parameter dtype, the model has several; convert it with .to(dtype)"
            )
        row = torch.cat([each.detach().flatten() for each in trained] or [torch.empty(0, device=self._group.device)])
        for parameter, part in zip(trained, torch.split(row, [each.numel() for each in trained]), strict=True):
            parameter.data = part.view_as(parameter)
        return row

    def gather(self, values: Mapping[Cell, Tensor] | None = None) -> dict[str, Tensor]:
        """Return whole weights (or `values`) by name, the same on every device; collective."""
        own = {cell: parameter.detach() for cell, parameter in self.parameters.items()} if values is None else values
        found: dict[str, Tensor] = {}
        for cell in self._all:
            if values is not None and not (cell.is_trained and cell.operator is not None):
                continue
            if cell.name not in found:
                shape = self._shapes[cell.name]
                found[cell.name] = torch.zeros(shape, dtype=self._dtypes[cell.name], device=self._group.device)
            if cell.devices[0] == self._group.rank:
                region(found[cell.name], cell.box, whole(self._shapes[cell.name])).copy_(own[cell])
        self._group.sum_all(found.values())
        return found

    def gradients(self) -> dict[str, Tensor]:
        """Return whole gradients by name, the same on every device; collective."""
        return self.gather({cell: each.grad for cell, each in self.parameters.items() if each.grad is not None})

    def _cells_in(self, name: str, box: Box) -> list[Cell]:
        key = name, box
        if key not in self._inside:
            own = [cell for cell in self.parameters if cell.name == name]
            self._inside[key] = [cell for cell in own if contains(box, cell.box)]
        return self._inside[key]

    def _zeros(self, key: object, shape: tuple[int, ...]) -> Tensor:
        assert isinstance(key, Cell)
        return torch.zeros(shape, dtype=self._dtypes[key.name], device=self._group.device)


class DeviceBuffers:
    """The buffer parts of one device: those that belong to the sums of its tiles."""

    # All devices of a sum apply the same updates in the same order, so their copies stay equal.

    def __init__(
        self, graph: OperatorGraph, program: TileProgram, values: Mapping[str, Tensor], group: ProcessGroup
    ) -> None:
        self._group = group
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
        own = {(task.operator, task.sums) for task in tasks if task.device == group.rank}
        self._shapes = {name: (tuple(value.shape), value.dtype) for name, value in values.items()}
        self._running = {
            (operator, box): {
                role: self._initial(operator, region(values[name], box, whole(values[name].shape)))
                for role, name in self._names[operator].items()
            }
            for operator, box in self._first
            if (operator, box) in own
        }

    def of(self, task: TileTask) -> Mapping[str, Tensor] | None:
        """Return the buffers to update with a task's sums, decayed for the layer's other operators; None: none."""
        assert task.sums is not None
        running = self._running.get((task.operator, task.sums))
        if running is not None and (decay_by_others := self._sharing[task.operator].decay_by_others) != 1:
            for tensor in running.values():
                tensor.mul_(decay_by_others)
        return running

    def gather(self) -> dict[str, Tensor]:
        """Return the whole buffers by name, the same on every device; collective."""
        found: dict[str, Tensor] = {}
        for (operator, box), device in self._first.items():
            for role, name in self._names[operator].items():
                if name not in found:
                    shape, dtype = self._shapes[name]
                    found[name] = torch.zeros(shape, dtype=dtype, device=self._group.device)
                if device == self._group.rank:
                    own = self._running[operator, box][role] * self._sharing[operator].decay_by_later
                    region(found[name], box, whole(found[name].shape)).add_(own)
        self._group.sum_all(found.values())
        for tensor in found.values() if self._group.learners > 1 else ():
            wait_for([self._group.sum_over_learners(tensor)])
            tensor.div_(self._group.learners)
        return found

    @property
    def own(self) -> list[Tensor]:
        """The buffers of this device, in an order that depends only on the partition."""
        return [tensor for running in self._running.values() for tensor in running.values()]

    def _initial(self, operator: int, value: Tensor) -> Tensor:
        sharing = self._sharing[operator]
        initial = value / (sharing.decay_by_others or 1.0) if sharing.is_first else torch.zeros_like(value)
        return initial.to(self._group.device)


@dataclass(frozen=True)
class _Sharing:
    """How an operator shares running statistics with other operators of the same layer."""

    # With K operators per step, `r <- (1 - m)^K r + sum_k m (1 - m)^(K - k) x_k`. The sum is separated: operator k
    # keeps `b_k <- (1 - m)^K b_k + m x_k`, the first one also the initial value, and `r = sum_k (1 - m)^(K - k) b_k`.
    # So no device needs the statistics of another device's tiles.

    is_first: bool  # whether it is the first of them in a step
    decay_by_others: float  # decay by the updates of all other operators, `(1 - m)^(K - 1)`
    decay_by_later: float  # decay by the updates of later operators, `(1 - m)^(K - k)`


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


def check_timing(sync: Synchroniser) -> None:
    if sync.timing is not Timing.WITH_STEP or isinstance(sync, TwoLevel):
        raise SettingError(
            f"training by a partition supports only synchronisers that average with every step, got {sync!r}; "
            "use bow.SMA() or bow.EASGD()"
        )


@dataclass
class LearnerRow:
    """One device's part of its learner, as the single row of a synchroniser."""

    weights: Tensor  # `[1, elements]`: the trained cells, concatenated; a view of them
    z: Tensor  # its part of the central model
    total: Tensor  # all-reduced over learners
    corrections: Tensor  # scratch
    by_device: Sequence[int]  # number of learners of each group
    gradients: Tensor = field(default_factory=lambda: torch.empty(0))
    before: Tensor | None = None
    state: dict[str, Tensor] = field(default_factory=dict)  # the synchroniser's own tensors


class Averaging:
    """Averages the learners of all groups, each device with its peers of the same rank in the other groups."""

    # All groups run the same partition, so devices of the same rank have the same cells.

    def __init__(self, sync: Synchroniser, weights: DeviceWeights, group: ProcessGroup) -> None:
        check_timing(sync)
        sync.check(group.learners)
        self._sync = sync
        self._group = group
        self._trained = {cell: each for cell, each in weights.parameters.items() if cell.is_trained}
        row = weights.flattened()
        self._row = LearnerRow(
            row[None], row.clone(), torch.empty_like(row), torch.empty_like(row[None]), [1] * group.learners
        )
        self._work: AsyncWork | None = None
        self._drop = DropRule()
        sync.start(self._row)

    def begin(self, step: int, lr: float) -> None:
        """Start to sum the learners' contributions, before their step."""
        self._drop.observe(lr)
        if self._sync.due(step, self._group.learners):
            self._sync.contribute(self._row, self._group.learners, self._group.learners)
            self._work = self._group.sum_over_learners(self._row.total)

    def finish(self) -> None:
        """Apply the sum, after the optimizer's step."""
        if self._work is not None:
            wait_for([self._work])
            self._sync.apply(self._row, self._group.learners, self._group.learners)
            self._work = None
            if self._sync.restarts_on_drop and self._drop.take():
                self._sync.restart_all(self._row)

    @property
    def central(self) -> dict[Cell, Tensor]:
        parts = torch.split(self._row.z, [parameter.numel() for parameter in self._trained.values()])
        return {cell: part.view_as(each) for (cell, each), part in zip(self._trained.items(), parts, strict=True)}

    def state(self) -> dict[str, Any]:
        return {"z": self._row.z, "own": dict(self._row.state), "drop": vars(self._drop).copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._row.z.copy_(state["z"])
        for name, tensor in self._row.state.items():
            tensor.copy_(state["own"][name])
        self._drop = DropRule(**state["drop"])
