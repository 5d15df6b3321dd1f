"""Averages learners that each have a group of devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bow.errors import SettingError
from bow.planning.tiles.device_state import Cell, DeviceWeights
from bow.planning.tiles.process_group import AsyncWork, ProcessGroup, wait_for
from bow.sync import DropRule, Synchroniser, Timing, TwoLevel


def check_timing(sync: Synchroniser) -> None:
    """Refuse a synchroniser that does all or a part of its averaging at another time than with the step."""
    if sync.timing is not Timing.WITH_STEP or isinstance(sync, TwoLevel):
        raise SettingError(
            f"learners of a partition are averaged with the step, {sync!r} averages at another time; "
            "use bow.SMA() or bow.EASGD()"
        )


@dataclass
class LearnerRow:
    """What one device has of its group's learner, as the rows of a synchroniser: one row."""

    weights: Tensor  # `[1, elements]`: the trained cells, behind each other; a view of them
    z: Tensor  # the central model's part
    total: Tensor  # what travels
    corrections: Tensor  # scratch
    by_device: Sequence[int]  # how many learners each group has
    gradients: Tensor = field(default_factory=lambda: torch.empty(0))
    before: Tensor | None = None
    state: dict[str, Tensor] = field(default_factory=dict)  # the synchroniser's own tensors


class Averaging:
    """Averages the learners of all groups, each device with those of its rank in the other groups."""

    # All groups run the same partition, so that devices of a rank have the same cells.

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
        """Begin to sum what the learners contribute, before their step."""
        self._drop.observe(lr)
        if self._sync.due(step, self._group.learners):
            self._sync.contribute(self._row, self._group.learners, self._group.learners)
            self._work = self._group.sum_over_learners(self._row.total)

    def finish(self) -> None:
        """Use the sum, behind the optimizer's step."""
        if self._work is not None:
            wait_for([self._work])
            self._sync.apply(self._row, self._group.learners, self._group.learners)
            self._work = None
            if self._sync.restarts_on_drop and self._drop.take():
                self._sync.restart_all(self._row)

    @property
    def central(self) -> dict[Cell, Tensor]:
        """This device's cells of the central model."""
        parts = torch.split(self._row.z, [parameter.numel() for parameter in self._trained.values()])
        return {cell: part.view_as(each) for (cell, each), part in zip(self._trained.items(), parts, strict=True)}

    def state(self) -> dict[str, Any]:
        """What is kept from step to step besides the weights."""
        return {"z": self._row.z, "own": dict(self._row.state), "drop": vars(self._drop).copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._row.z.copy_(state["z"])
        for name, tensor in self._row.state.items():
            tensor.copy_(state["own"][name])
        self._drop = DropRule(**state["drop"])
