"""The placement policy: a network that encodes a graph's operations and samples a device for each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Operations:
    """Operations, or groups of them, in topological order."""

    # Step times and the number of devices are all that a policy learns about the hardware.

    kinds: tuple[str, ...]  # by operation, such as `conv2d`
    shapes: tuple[tuple[tuple[int, ...], ...], ...]  # by operation: the shape of each output
    edges: tuple[tuple[int, int], ...]  # pairs of operations: (maker, reader)
    num_devices: int

    def __len__(self) -> int:
        return len(self.kinds)


MOST_SIZES = 32  # sizes used per operation
LOG_SCALE = 10.0
"""Sizes are embedded as log2(1 + size) / 10, so that 1,000 is about 1: raw sizes would dominate all else."""


class OperationEmbedding(nn.Module):
    """Embeds each operation as its kind, its outputs' shapes and its neighbours, concatenated."""

    kinds: Tensor
    fixed: Tensor

    def __init__(self, operations: Operations, kind_size: int) -> None:
        super().__init__()
        known = sorted(set(operations.kinds))
        self.of_kind = nn.Embedding(len(known), kind_size)
        numbers = [known.index(kind) for kind in operations.kinds]
        # The graph is not learned: it is passed again when a checkpoint is loaded.
        self.register_buffer("kinds", torch.tensor(numbers), persistent=False)
        fixed = torch.cat([_sizes(operations), _neighbours(operations)], dim=1)
        self.register_buffer("fixed", fixed, persistent=False)

    @property
    def size(self) -> int:
        return self.of_kind.embedding_dim + self.fixed.shape[1]

    def forward(self) -> Tensor:
        """Return the vectors of all operations, [operations, size]."""
        of_kind: Tensor = self.of_kind(self.kinds)
        return torch.cat([of_kind, self.fixed], dim=1)


def _sizes(operations: Operations) -> Tensor:
    lists = [[size for shape in shapes for size in shape][:MOST_SIZES] for shapes in operations.shapes]
    padded = torch.zeros(len(lists), max(map(len, lists)))
    for row, sizes in zip(padded, lists, strict=True):
        row[: len(sizes)] = torch.tensor(sizes, dtype=torch.float64).add(1).log2().div(LOG_SCALE)
    return padded


def _neighbours(operations: Operations) -> Tensor:
    count = len(operations)
    marks = torch.zeros(count, 2 * count)
    for maker, reader in operations.edges:
        marks[reader, maker] = 1
        marks[maker, count + reader] = 1
    return marks


_Choose: TypeAlias = Callable[[int, Tensor], Tensor]
"""Maps the number of an operation and logits [placements, devices] to devices [placements]."""


SAME_DEVICE_LOGIT = 4.0
"""Initial extra logit of the previous operation's device: first samples are runs of neighbours on one device."""


@dataclass(frozen=True)
class PolicySettings:
    """Sizes of a policy."""

    hidden: int = 64  # units of the encoder (both directions together) and of the decoder; even
    kind_size: int = 16  # embedding size of an operation's kind
    attention: int = 32  # units of attention queries and keys


class Likelihood(NamedTuple):
    """Likelihood of placements."""

    log_probabilities: Tensor  # [placements]
    entropies: Tensor  # [placements], in nats: summed over the choices along each placement


class PlacementPolicy(nn.Module):
    """Sequence-to-sequence network: one LSTM encodes the operations, another one with attention chooses devices."""

    # p(P) = prod_i p(p_i | p_1 ... p_(i-1)),  p(p_i | ...) = softmax(W [h_i, sum_j a_ij e_j] + V p_(i-1))
    # a_i = softmax_j(W_e e_j . W_h h_i / sqrt(units)),  h_i = LSTM([embedding of p_(i-1), e_i], h_(i-1))

    def __init__(self, operations: Operations, settings: PolicySettings | None = None, *, seed: int = 0) -> None:
        super().__init__()
        self.operations = operations
        self.settings = settings = settings or PolicySettings()
        hidden, devices = settings.hidden, operations.num_devices
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = OperationEmbedding(operations, settings.kind_size)
            self.encoder = nn.LSTM(self.embedding.size, hidden // 2, bidirectional=True)
            self.devices = nn.Embedding(devices + 1, hidden)  # the last one: no previous choice
            self.decoder = nn.LSTM(2 * hidden, hidden)
            self.of_encoder = nn.Linear(hidden, settings.attention, bias=False)
            self.of_decoder = nn.Linear(hidden, settings.attention, bias=False)
            self.choice = nn.Linear(2 * hidden, devices)
        # Added to the logits, by previous device (the last one: none).
        self.habit = nn.Embedding(devices + 1, devices, _weight=SAME_DEVICE_LOGIT * torch.eye(devices + 1, devices))

    @torch.no_grad()
    def sample(
        self,
        count: int,
        generator: torch.Generator | None = None,
        *,
        explorers: int = 0,
        random_choices: float = 0.0,
    ) -> Tensor:
        """Sample placements; in each of the last `explorers`, `random_choices` devices on average are uniform."""
        epsilon = torch.zeros(count, 1)
        epsilon[count - explorers :] = min(1.0, random_choices / len(self.operations))

        def draw(step: int, logits: Tensor) -> Tensor:
            chances = (1 - epsilon) * logits.softmax(dim=1) + epsilon / self.operations.num_devices
            return torch.multinomial(chances, 1, generator=generator).squeeze(1)

        return self._decode(count, draw)

    @torch.no_grad()
    def greedy(self) -> tuple[int, ...]:
        return tuple(self._decode(1, lambda step, logits: logits.argmax(dim=1))[0].tolist())

    def log_probability(self, placements: Tensor) -> Likelihood:
        encoded, state = self._encoded(placements.shape[0])
        start = torch.full_like(placements[:, :1], self.operations.num_devices)
        before = torch.cat([start, placements[:, :-1]], dim=1).T
        hidden, _ = self.decoder(self._read(before, encoded), state)
        log_probabilities = self._logits(hidden, before, encoded, self.of_encoder(encoded)).log_softmax(dim=2)
        chosen = log_probabilities.gather(2, placements.T.unsqueeze(2)).squeeze(2)
        entropies = -(log_probabilities.exp() * log_probabilities).sum(dim=2)
        return Likelihood(chosen.sum(dim=0), entropies.sum(dim=0))

    def _decode(self, count: int, choose: _Choose) -> Tensor:
        encoded, (hidden, cell) = self._encoded(count)
        keys, (of_device, of_operation) = self.of_encoder(encoded), self._gates(encoded)
        recurrent = self._decoder_weights[1].T
        hidden, cell = hidden[0], cell[0]
        device = torch.full((count,), self.operations.num_devices)
        chosen = []
        for step in range(len(self.operations)):
            gates = of_device[device] + of_operation[step] + hidden @ recurrent
            into, forget, new, out = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
            device = choose(step, self._logits(hidden[None], device[None], encoded, keys)[0])
            chosen.append(device)
        return torch.stack(chosen, dim=1)

    def _gates(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Precompute the decoder inputs' part of its gates: by previous device, and by operation."""
        # The distinct inputs are few and known beforehand, so that the sampling loop only adds the part of the state.
        of_inputs, _, *biases = self._decoder_weights
        of_devices, of_operations = torch.split(of_inputs, self.settings.hidden, dim=1)
        bias = (biases[0] + biases[1]).expand(len(encoded), -1)
        return self.devices.weight @ of_devices.T, bias + encoded @ of_operations.T

    @property
    def _decoder_weights(self) -> list[nn.Parameter]:
        """Weights of the inputs and of the state, and two biases; each for the gates in, forget, new, out."""
        (weights,) = self.decoder.all_weights
        return weights

    def _encoded(self, count: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the encoded operations, [operations, hidden], and the decoder's initial state for `count` samples."""
        encoded, last = self.encoder(self.embedding())
        state = tuple(each.reshape(1, 1, -1).expand(1, count, -1).contiguous() for each in last)
        return encoded, (state[0], state[1])

    def _read(self, before: Tensor, encoded: Tensor) -> Tensor:
        """Return the decoder's input, [operations, placements, ...], from the previous devices."""
        vectors: Tensor = self.devices(before)
        return torch.cat([vectors, encoded.unsqueeze(1).expand(-1, before.shape[1], -1)], dim=2)

    def _logits(self, hidden: Tensor, before: Tensor, encoded: Tensor, keys: Tensor) -> Tensor:
        """Return logits [steps, placements, devices] from the decoder's outputs, [steps, placements, hidden]."""
        scores = self.of_decoder(hidden) @ keys.T / math.sqrt(self.settings.attention)
        logits: Tensor = self.choice(torch.cat([hidden, scores.softmax(dim=2) @ encoded], dim=2))
        habit: Tensor = self.habit(before)
        return logits + habit
