"""Sums over all tiles of an operator, in the middle of it."""

from collections.abc import Sequence

from torch import Tensor

from bow.planning.problem.box import Box
from bow.planning.tiles.program import TileTask
from bow.planning.tiles.recording import Recorder
from bow.planning.tiles.team import Team, Work, wait_for


def rows_of_all(
    own: Sequence[tuple[TileTask, Tensor]], tasks: Sequence[TileTask], team: Team, recorder: Recorder
) -> dict[Box, Tensor]:
    """What every tile of each sum has found, stacked in the order of the tiles.

    Every device of a sum puts its own rows among zeros, and all are added.
    """
    found: dict[Box, Tensor] = {}
    for task, row in own:
        assert task.sums is not None
        if task.sums not in found:
            found[task.sums] = row.new_zeros(len(_together(tasks, task.sums)), *row.shape)
        found[task.sums][place_in_sum(task, tasks)] = row
    add_up(found, tasks, team, recorder)
    return found


def add_up(found: dict[Box, Tensor], tasks: Sequence[TileTask], team: Team, recorder: Recorder) -> None:
    """Add tensors up over the devices of each sum, in place."""
    works: list[Work] = []
    for box in sorted(found):  # in the same order on all devices
        devices = sum_devices(tasks, box)
        if len(devices) > 1:
            works.append(team.sum(found[box], devices))
    if works:
        with recorder.span("reduction", "sums"):
            wait_for(works)


def is_alone(task: TileTask, tasks: Sequence[TileTask]) -> bool:
    """Whether a tile is the only one of its sum."""
    return sum(each.sums == task.sums for each in tasks) == 1


def place_in_sum(task: TileTask, tasks: Sequence[TileTask]) -> int:
    """Which row of its sum is a tile's."""
    assert task.sums is not None
    return [each.number for each in _together(tasks, task.sums)].index(task.number)


def sum_devices(tasks: Sequence[TileTask], box: Box) -> tuple[int, ...]:
    """The devices that have tiles of a sum, in ascending order."""
    return tuple(sorted({task.device for task in _together(tasks, box)}))


def _together(tasks: Sequence[TileTask], box: Box) -> list[TileTask]:
    return [task for task in tasks if task.sums == box]
