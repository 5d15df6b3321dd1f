"""A step that is quickly captured and has something to run side by side."""

import functools

import torch
from torch import Tensor, nn

from bow.runtime.local import operators_of
from bow.schedule.profiler import BoundStep, OperatorTime, Profile


class Branches(nn.Module):
    """Three layers that read the same and are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 5) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        first, *others = (layer(inputs).tanh() for layer in self.layers)
        return functools.reduce(torch.add, others, first)


@functools.cache
def branches() -> BoundStep:
    torch.manual_seed(0)
    return BoundStep.of(Branches(), (torch.randn(4, 6), torch.randn(4, 5)), nn.functional.mse_loss)


def made_up(subject: BoundStep, threads: tuple[int, ...] = (1, 2)) -> Profile:
    """Times as nobody measured them: an operator's grow with its number, and two threads help every other one."""
    operators = operators_of(subject.graph)

    def seconds(index: int, count: int) -> float:
        return 1e-6 * (1 + index) * (1.0 if count == 1 else (0.6, 1.5)[index % 2])

    return Profile(
        names=tuple(operator.kind for operator in operators),
        modules=tuple(operator.module for operator in operators),
        times={n: tuple(OperatorTime(seconds(i, n), 0.0, 1) for i in range(len(operators))) for n in threads},
        hardware="made up",
    )
