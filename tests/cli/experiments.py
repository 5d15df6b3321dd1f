"""Functions that command lines in tests name by their dotted path."""

import torch
from torch import Tensor, nn


def loss_per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


NOT_CALLABLE = 3


class Untrainable(nn.Module):
    def __init__(self, classes: int, **others: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits.expand(len(inputs), -1)
