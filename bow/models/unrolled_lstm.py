"""LSTM layers written out in time."""

from collections.abc import Sequence

from torch import Tensor, nn

from bow.errors import SettingError

State = tuple[Tensor, Tensor]
"""Hidden and cell state of one layer, each `[batch, hidden]`."""


class UnrolledLSTM(nn.Module):
    r"""Stacked LSTM layers, one cell call for each layer and step in time.

    `i, f, g, o = split(W x_t + b + U h_{t-1} + b')`, `c_t = \sigma(f) c_{t-1} + \sigma(i) \tanh(g)`,
    `h_t = \sigma(o) \tanh(c_t)`.

    The function of `torch.nn.LSTM`, with operators that know less of each other: there, one product takes the inputs of
    all steps, so that a layer begins when the layer below has ended. Here a cell waits for its own input and its own
    last state only. Cells on a diagonal of the grid of layers and steps can run at once, and so can both products of a
    cell.

    Args:
        features: size of an input at one step.
        hidden: units of each layer.
        layers: number of layers.

    Raises:
        SettingError: there are no layers.

    Example:
        >>> import torch
        >>> outputs, states = UnrolledLSTM(3, hidden=8, layers=2)([torch.zeros(4, 3)] * 5)
        >>> len(outputs), outputs[-1].shape, len(states)
        (5, torch.Size([4, 8]), 2)

    References:
        Hochreiter, Schmidhuber: Long short-term memory, 1997.
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 7.3.
    """

    def __init__(self, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        check_layers(layers)
        self.cells = nn.ModuleList(nn.LSTMCell(size, hidden) for size in [features] + [hidden] * (layers - 1))

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[State] | None = None
    ) -> tuple[Sequence[Tensor], list[State]]:
        """The outputs of the last layer at every step, and the last state of every layer.

        Args:
            inputs: of each step, `[batch, features]`.
            states: of each layer before the first step; None: zeros.
        """
        last: list[State] = []
        for layer, cell in enumerate(self.cells):
            state = states[layer] if states is not None else None
            passed: list[State] = []
            for step in inputs:
                state = cell(step, state)
                passed.append(state)
            inputs = [hidden for hidden, _ in passed]
            last.append(passed[-1])
        return inputs, last


def check_layers(layers: int) -> None:
    """Refuse a network without layers.

    Raises:
        SettingError: there is not at least one.
    """
    if layers < 1:
        raise SettingError(f"layers must be at least 1, got {layers}")
