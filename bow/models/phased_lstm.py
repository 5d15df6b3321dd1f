"""Phased LSTM."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from bow.errors import SettingError
from bow.models.recurrent import State, check_layers, steps_of

Periods = tuple[float, float]


class PhasedLSTM(nn.Module):
    """Language model of LSTM layers whose units open and close periodically.

    The counterpart of `RNNLanguageModel`: embedding, unrolled phased LSTM layers, and a softmax layer at every step.
    The gates depend only on times, so those of all steps and layers can be computed at once. `periods` are the shortest
    and longest initial period of a unit, `open_ratio` the initial fraction of a period in which it is open, and `leak`
    the fraction of the phase that a closed unit leaks in training.

    References:
        Neil, Pfeiffer, Liu: Phased LSTM: Accelerating recurrent network training for long or event-based sequences,
        2016.
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int = 64,
        layers: int = 2,
        periods: Periods = (1.0, 1000.0),
        open_ratio: float = 0.05,
        leak: float = 0.001,
    ) -> None:
        super().__init__()
        check_layers(layers)
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.cells = nn.ModuleList(PhasedLSTMCell(hidden, hidden, periods, open_ratio, leak) for _ in range(layers))
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, inputs: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Logits `[batch, length, vocabulary]` of the token after each."""
        tokens, times = (inputs, None) if isinstance(inputs, Tensor) else inputs
        moments = _positions(tokens, self.output.weight) if times is None else times.t().unsqueeze(-1).unbind(0)
        steps: Iterable[Tensor] = steps_of(self.embedding, tokens)
        for cell in self.cells:
            steps = _unrolled(cell, steps, moments)
        return torch.stack([self.output(step) for step in steps], dim=1)


class PhasedLSTMCell(nn.Module):
    r"""An LSTM cell with a time gate: where it is closed, the unit keeps its state.

    With phase `\phi = ((t - s) mod \tau) / \tau` the gate is `k = 2 \phi / r` while `\phi < r / 2` (opening),
    `2 - 2 \phi / r` while `\phi < r` (closing), and `\alpha \phi` otherwise (closed). Both states of an LSTM cell are
    interpolated with the previous ones: `c_t = k c'_t + (1 - k) c_{t-1}`, `h_t = k h'_t + (1 - k) h_{t-1}`. Period
    `\tau`, phase shift `s` and open ratio `r` are learned per unit. The leak `\alpha` is 0 in evaluation. As in
    TensorFlow, there are no peephole connections.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        periods: Periods = (1.0, 1000.0),
        open_ratio: float = 0.05,
        leak: float = 0.001,
    ) -> None:
        super().__init__()
        shortest, longest = periods
        if not 0 < shortest <= longest:
            raise SettingError(f"periods must be positive and in ascending order, got {periods}")
        if not 0 < open_ratio < 1:
            raise SettingError(f"open_ratio must lie between 0 and 1, got {open_ratio}")
        self.cell = nn.LSTMCell(features, hidden)
        self.period = nn.Parameter(torch.empty(hidden).uniform_(math.log(shortest), math.log(longest)).exp())
        self.shift = nn.Parameter(torch.rand(hidden) * self.period.detach())
        self.open_ratio = nn.Parameter(torch.full((hidden,), open_ratio))
        self._leak = leak

    def gate(self, times: Tensor) -> Tensor:
        """Openness of each unit, `[batch, hidden]`, at `times`, `[batch, 1]`."""
        phase = torch.remainder(times - self.shift, self.period) / self.period
        ramp = 2 * phase / self.open_ratio
        leaking = phase * (self._leak if self.training else 0.0)
        return torch.where(phase < self.open_ratio, 1 - (1 - ramp).abs(), leaking)

    def forward(self, inputs: Tensor, times: Tensor, state: State | None = None) -> State:
        """Return the next hidden and cell state, each `[batch, hidden]`."""
        zeros = inputs.new_zeros(len(inputs), len(self.period))
        hidden, memory = state = state or (zeros, zeros)
        new_hidden, new_memory = self.cell(inputs, state)
        gate = self.gate(times)
        return torch.lerp(hidden, new_hidden, gate), torch.lerp(memory, new_memory, gate)


def _unrolled(cell: nn.Module, inputs: Iterable[Tensor], times: Iterable[Tensor]) -> Iterator[Tensor]:
    state: State | None = None
    for step, moment in zip(inputs, times, strict=True):
        state = cell(step, moment, state)
        yield state[0]


def _positions(tokens: Tensor, like: Tensor) -> tuple[Tensor, ...]:
    """Return the times 0, 1, 2, ..., each `[1, 1]`, shared by the batch."""
    length = tokens.shape[1]
    return torch.arange(length, dtype=like.dtype, device=like.device).view(length, 1, 1).unbind(0)
