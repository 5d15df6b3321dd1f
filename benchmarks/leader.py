"""TensorBow's synchronisation, for comparison: variable by variable, by the learner that arrives last."""

import functools

import torch
from torch import Tensor
from torch.func import functional_call

from bow.cluster import PendingSum
from bow.data import Batch, Batches, batch_of
from bow.engines import Outcome, TaskRunner
from bow.engines.averaging import ModelAveraging
from bow.engines.context import RoundContext
from bow.engines.task import LearningTask
from bow.sync import SMA


class All(PendingSum):
    """Several pending sums."""

    def __init__(self, sums: list[PendingSum]) -> None:
        self._sums = sums

    def wait(self) -> None:
        for each in self._sums:
            each.wait()


class SummedByVariable(ModelAveraging):
    """ModelAveraging whose sums are started by the learners, variable by variable."""

    def begin(self, due: bool) -> None:
        """Nothing: learners sum their own contributions."""


class ByLeader(TaskRunner):
    """Runs learners in turn; the last one with a variable's gradient averages the variable.

    Contributions are known before the learning tasks, but a sum that is triggered by a gradient starts late. The order
    of the variables is that of the backward pass, the same on all devices.

    References:
        Budea, TensorBow, 2019, section 4.4.
    """

    name = "leader"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        group, sync, settings = context.group, context.sync, context.settings
        assert isinstance(sync, SMA)
        context.averaging = SummedByVariable(group, sync)
        self._alpha = 1 / group.num_all if sync.alpha is None else sync.alpha
        self._tasks = [
            LearningTask(each.module, settings.step, group.device, settings.engine.precision) for each in group.learners
        ]
        slots = group.layout.slots
        self._sizes = [slot.numel for slot in slots] + ([group.layout.padding] if group.layout.padding else [])
        group.matrix.corrections.zero_()  # the padding, which is not a variable
        self._sums: list[PendingSum] = []
        self._missing: list[int] = []

    def learn(self, batches: Batches) -> Outcome:
        """Run the learning tasks in turn; initially all learners are missing for every variable."""
        averaging = self.context.averaging
        due = averaging.due(self.context.round_index)
        self._sums = []
        averaging.summing = All(self._sums)
        self._missing = [len(self.group) if due else 0] * len(self.group.layout.slots)
        losses = torch.stack([self._learn(index, batch_of(batches, index)) for index in range(len(self.group))])
        for variable, missing in enumerate(self._missing):  # variables that the loss does not depend on
            if missing:
                self._sum(variable)
        finite = torch.isfinite(losses) & torch.isfinite(self.group.matrix.gradients.sum(1))
        return Outcome(losses, finite, [True] * len(losses))

    def _learn(self, index: int, batch: Batch | None) -> Tensor:
        learner = self.group.learners[index]
        with torch.enable_grad():
            named: dict[str, Tensor] = {}
            for variable, piece in enumerate(torch.split(learner.row, self._sizes)[: len(self._missing)]):
                slot = self.group.layout.slots[variable]
                piece.register_hook(functools.partial(self._arrived, variable))  # type: ignore[no-untyped-call]
                named.update({f"model.{name}": slot.view(piece) for name in slot.names})
            loss: Tensor = functional_call(self._tasks[index], named, (batch,), tie_weights=False)[0]
            (gradient,) = torch.autograd.grad(loss, learner.row)
        learner.gradient.copy_(gradient)
        return loss.detach()

    def _arrived(self, variable: int, gradient: Tensor) -> None:
        """Contribute a learner's variable when its gradient arrives; the last learner starts the sum."""
        if not self._missing[variable]:
            return
        self._missing[variable] -= 1
        if not self._missing[variable]:
            self._sum(variable)

    def _sum(self, variable: int) -> None:
        matrix, slot = self.group.matrix, self.group.layout.slots[variable]
        columns = slice(slot.offset, slot.offset + slot.numel)
        corrections = matrix.corrections[:, columns]
        torch.sub(matrix.weights[:, columns], matrix.z[columns], out=corrections)
        corrections.mul_(self._alpha)
        torch.sum(corrections, 0, out=matrix.total[columns])
        self._sums.append(self.group.world.sum(matrix.total[columns]))
