"""Logistic regression."""

from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer over the flattened input: the smallest model there is to fill a machine with.

    Args:
        in_features: numbers in one sample, whatever its shape.
        classes: number of classes.
    """

    def __init__(self, in_features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits `[batch, classes]` of inputs `[batch, ...]`."""
        logits: Tensor = self.linear(inputs.flatten(1))
        return logits
