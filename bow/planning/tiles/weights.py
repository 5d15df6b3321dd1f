"""The cells of weights that a device has, their gradients, and the sums of these over replicas."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bow.errors import SettingError
from bow.planning.problem.box import Box, contains, whole
from bow.planning.tiles.cells import Cell
from bow.planning.tiles.regions import Sums, put_together, region
from bow.planning.tiles.team import Team, Work, wait_for


class DeviceWeights:
    """What one device has of the weights.

    Args:
        cells: those of all devices.
        values: the whole weights, by name, in the shape that the graph gives them.
        team: the devices.

    Attributes:
        parameters: by cell: what is trained.
    """

    def __init__(self, cells: Sequence[Cell], values: Mapping[str, Tensor], team: Team) -> None:
        self.parameters = {cell: _own(cell, values[cell.name]) for cell in cells if team.number in cell.devices}
        self._team = team
        self._all = cells
        self._shapes = {name: tuple(value.shape) for name, value in values.items()}
        self._dtypes = {name: value.dtype for name, value in values.items()}
        self._inside: dict[tuple[str, Box], list[Cell]] = {}
        self._read: dict[tuple[str, Box], Tensor] = {}
        self._gradients = Sums(self._zeros)
        self._sums: list[tuple[Work, Tensor, list[Cell]]] = []
        self._summed: dict[int, list[list[Cell]]] = {}
        for cell in self.parameters:
            if cell.operator is not None and cell.is_trained and len(cell.devices) > 1:
                _together(self._summed.setdefault(cell.operator, []), cell, self._dtypes)
        team.prepare(cell.devices for cell in cells)

    def read(self, name: str, box: Box) -> Tensor:
        """A box of a weight, as a leaf that gradients are asked for; the same tensor all through a step."""
        key = name, box
        if key not in self._read:
            cells = self._cells_in(name, box)
            parts = [(cell.box, self.parameters[cell].detach()) for cell in cells]
            self._read[key] = put_together(box, parts).detach().requires_grad_(cells[0].is_trained)
        return self._read[key]

    def add_gradient(self, name: str, box: Box, gradient: Tensor) -> None:
        """Add a tile's gradient of what it read."""
        for cell in self._cells_in(name, box):
            self._gradients.add(cell, cell.box, cell.box, region(gradient, cell.box, box))

    def begin_sums(self, operator: int) -> None:
        """Begin to sum the gradients that are there once an operator's backward pass has run."""
        for cells in self._summed.get(operator, ()):
            flat = torch.cat([self._gradients.take(cell, cell.box).reshape(-1) for cell in cells])
            self._sums.append((self._team.sum(flat, cells[0].devices), flat, cells))

    def finish_sums(self) -> None:
        """Wait for all sums, and give every parameter its gradient."""
        for work, flat, cells in self._sums:
            wait_for([work])
            parts = torch.split(flat, [self.parameters[cell].numel() for cell in cells])
            for cell, part in zip(cells, parts, strict=True):
                self._gradients.add(cell, cell.box, cell.box, part.view_as(self.parameters[cell]))
        self._sums.clear()
        for cell, parameter in self.parameters.items():
            has_gradient = cell.is_trained and cell.operator is not None
            parameter.grad = self._gradients.take(cell, cell.box).contiguous() if has_gradient else None
        self._read.clear()

    def in_a_row(self) -> Tensor:
        """Put what is trained into one tensor, of which the parameters are views from now on."""
        trained = [parameter for cell, parameter in self.parameters.items() if cell.is_trained]
        if len({parameter.dtype for parameter in trained}) > 1:
            raise SettingError("learners are averaged in one type, the model has several; convert it with .to(dtype)")
        row = torch.cat([each.detach().flatten() for each in trained] or [torch.empty(0, device=self._team.device)])
        for parameter, part in zip(trained, torch.split(row, [each.numel() for each in trained]), strict=True):
            parameter.data = part.view_as(parameter)
        return row

    def gathered(self, values: Mapping[Cell, Tensor] | None = None) -> dict[str, Tensor]:
        """Whole weights by name, the same on every device; all devices ask for them."""
        own = {cell: parameter.detach() for cell, parameter in self.parameters.items()} if values is None else values
        found: dict[str, Tensor] = {}
        for cell in self._all:
            if values is not None and not (cell.is_trained and cell.operator is not None):
                continue
            if cell.name not in found:
                shape = self._shapes[cell.name]
                found[cell.name] = torch.zeros(shape, dtype=self._dtypes[cell.name], device=self._team.device)
            if cell.devices[0] == self._team.number:
                region(found[cell.name], cell.box, whole(self._shapes[cell.name])).copy_(own[cell])
        self._team.sum_all(found.values())
        return found

    def gradients(self) -> dict[str, Tensor]:
        """Whole gradients by name, of what has one, the same on every device; all devices ask for them."""
        return self.gathered({cell: each.grad for cell, each in self.parameters.items() if each.grad is not None})

    def _cells_in(self, name: str, box: Box) -> list[Cell]:
        key = name, box
        if key not in self._inside:
            own = [cell for cell in self.parameters if cell.name == name]
            self._inside[key] = [cell for cell in own if contains(box, cell.box)]
        return self._inside[key]

    def _zeros(self, key: object, shape: tuple[int, ...]) -> Tensor:
        assert isinstance(key, Cell)
        return torch.zeros(shape, dtype=self._dtypes[key.name], device=self._team.device)


def _own(cell: Cell, value: Tensor) -> nn.Parameter:
    own = region(value.detach(), cell.box, whole(tuple(value.shape))).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(own, requires_grad=cell.is_trained)


def _together(groups: list[list[Cell]], cell: Cell, dtypes: Mapping[str, torch.dtype]) -> None:
    """Put a cell to those that are summed by the same devices at the same time: one message for all."""
    for group in groups:
        if group[0].devices == cell.devices and dtypes[group[0].name] == dtypes[cell.name]:
            group.append(cell)
            return
    groups.append([cell])
