"""LSTM networks: language models, phased ones among them, a text classifier, a translator."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import SettingError


def sequence_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all positions of all sequences, in nats per token.

    Args:
        logits: `[batch, length, vocabulary]`, unnormalised log-probabilities of the next token.
        targets: `[batch, length]`, int64, the next tokens.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class LSTMLanguageModel(nn.Module):
    """Embedding, stacked LSTM layers, and a linear layer that predicts the next token at every position.

    Every sequence starts from a state of zeros.

    References:
        Zaremba, Sutskever, Vinyals: Recurrent neural network regularization, 2014.
    """

    def __init__(
        self, vocabulary: int, embedding: int = 64, hidden: int = 128, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        # One module per layer: nn.LSTM's own dropout is drawn inside a library on GPUs, where it is not reproducible.
        sizes = [embedding] + [hidden] * (layers - 1)
        self.lstms = nn.ModuleList(nn.LSTM(size, hidden, batch_first=True) for size in sizes)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[batch, length, vocabulary]` of the token after each of `tokens`, `[batch, length]`."""
        states = self.embedding(tokens)
        for lstm in self.lstms:
            states, _ = lstm(self.dropout(states))
        logits: Tensor = self.output(self.dropout(states))
        return logits


State = tuple[Tensor, Tensor]  # Hidden and cell state of one layer, each `[batch, hidden]`


class UnrolledLSTM(nn.Module):
    r"""Stacked LSTM layers, one cell call for each layer and time step.

    `i, f, g, o = split(W x_t + b + U h_{t-1} + b')`, `c_t = \sigma(f) c_{t-1} + \sigma(i) \tanh(g)`,
    `h_t = \sigma(o) \tanh(c_t)`.

    The same function as `torch.nn.LSTM`, with fewer dependencies between operators: there, one matrix product computes
    the inputs of all steps, so a layer begins only after the layer below has ended. Here a cell waits only for its own
    input and its own last state. Cells on a diagonal of the grid of layers and steps can run concurrently, and so can
    both products of a cell.

    References:
        Hochreiter, Schmidhuber: Long short-term memory, 1997.
    """

    def __init__(self, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        check_layers(layers)
        self.cells = nn.ModuleList(nn.LSTMCell(size, hidden) for size in [features] + [hidden] * (layers - 1))

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[State] | None = None
    ) -> tuple[Sequence[Tensor], list[State]]:
        """Return the last layer's output at every step, and every layer's last state."""
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
    if layers < 1:
        raise SettingError(f"layers must be at least 1, got {layers}")


class RNNLanguageModel(nn.Module):
    """Embedding, unrolled LSTM layers, and a softmax layer at every step.

    The function of `LSTMLanguageModel` as the graph on which planners and schedulers are evaluated: RNNLM, and Graphi's
    LSTM. Every sequence starts from a state of zeros; `hidden` is also the size of embeddings.

    References:
        Zaremba, Sutskever, Vinyals: Recurrent neural network regularization, 2014.
    """

    def __init__(self, vocabulary: int, hidden: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = UnrolledLSTM(hidden, hidden, layers)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[batch, length, vocabulary]` of the token after each of `tokens`, `[batch, length]`."""
        outputs, _ = self.lstm(steps_of(self.embedding, tokens))
        return torch.stack([self.output(output) for output in outputs], dim=1)


def steps_of(embedding: nn.Embedding, tokens: Tensor) -> tuple[Tensor, ...]:
    """Return embeddings by step, each `[batch, features]` and contiguous, of tokens `[batch, length]`."""
    steps: tuple[Tensor, ...] = embedding(tokens.t()).unbind(0)
    return steps


class RNNTextClassifier(nn.Module):
    """RNNTC: embedding, unrolled LSTM layers, and a softmax layer after the last step.

    References:
        Kim: Convolutional neural networks for sentence classification, 2014 (the task).
    """

    def __init__(self, vocabulary: int, classes: int = 2, hidden: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = UnrolledLSTM(hidden, hidden, layers)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[batch, classes]` of texts, `[batch, length]`."""
        outputs, _ = self.lstm(steps_of(self.embedding, tokens))
        logits: Tensor = self.output(outputs[-1])
        return logits


class Translator(nn.Module):
    """NMT: an LSTM encoder and decoder, attention on top of the decoder, and a softmax layer.

    The decoder starts from the encoder's last states, layer by layer, and is given the true sentence (teacher forcing).
    Attention sits on top of the last decoder layer and is not fed back, so that no step's attention or softmax waits
    for another step's.

    References:
        Bahdanau, Cho, Bengio: Neural machine translation by jointly learning to align and translate, 2014.
        Wu et al.: Google's neural machine translation system, 2016.
    """

    def __init__(self, source_vocabulary: int, target_vocabulary: int, hidden: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(source_vocabulary, hidden)
        self.target_embedding = nn.Embedding(target_vocabulary, hidden)
        self.encoder = UnrolledLSTM(hidden, hidden, layers)
        self.decoder = UnrolledLSTM(hidden, hidden, layers)
        self.attention = AdditiveAttention(hidden)
        self.mix = nn.Linear(2 * hidden, hidden)
        self.output = nn.Linear(hidden, target_vocabulary)

    def forward(self, sentences: tuple[Tensor, Tensor]) -> Tensor:
        """Logits `[batch, length, target_vocabulary]` of the token after each of the target's."""
        source, target = sentences
        encoded, states = self.encoder(steps_of(self.source_embedding, source))
        decoded, _ = self.decoder(steps_of(self.target_embedding, target), states)
        values = torch.stack(encoded, dim=1)
        keys = self.attention.key(values)
        return torch.stack([self._predict(step, keys, values) for step in decoded], dim=1)

    def _predict(self, decoded: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        context = self.attention(decoded, keys, values)
        logits: Tensor = self.output(torch.tanh(self.mix(torch.cat([decoded, context], dim=1))))
        return logits


class AdditiveAttention(nn.Module):
    r"""A mean of values, weighted by the fit of their keys to a query.

    `a = softmax_s(v^T \tanh(W q + k_s))`, `context = \sum_s a_s value_s`, with keys `k_s = U value_s + b`, computed
    once for all queries.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden)
        self.energy = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the context `[batch, hidden]` of a query `[batch, hidden]` over `[batch, length, hidden]`."""
        energies = self.energy(torch.tanh(keys + self.query(query).unsqueeze(1)))
        context: Tensor = (energies.softmax(dim=1) * values).sum(dim=1)
        return context


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
        if isinstance(inputs, Tensor):  # times 0, 1, 2, ..., shared by the batch
            tokens, weight = inputs, self.output.weight
            times = torch.arange(tokens.shape[1], dtype=weight.dtype, device=weight.device).unsqueeze(0)
        else:
            tokens, times = inputs
        moments = times.t().unsqueeze(-1).unbind(0)
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
