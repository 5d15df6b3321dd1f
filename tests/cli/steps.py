"""A step that command lines in tests name by its dotted path."""

from torch import Tensor, nn


def squared_outputs(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, _ = batch
    outputs: Tensor = model(inputs)
    return outputs.square().sum()


def sorted_outputs(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """An operator that nobody has a rule for is among its operators."""
    inputs, _ = batch
    outputs: Tensor = model(inputs)
    return outputs.sort(dim=1).values.square().sum()
