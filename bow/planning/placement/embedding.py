"""Operations as vectors."""

import torch
from torch import Tensor, nn

from bow.planning.placement.operations import Operations

MOST_SIZES = 32
"""Of an operation's outputs so many sizes are looked at."""

LOG_SCALE = 10.0
"""Sizes are embedded as log2(1 + size) / 10, so that a thousand is about 1: raw ones would drown all else."""


class OperationEmbedding(nn.Module):
    """Each operation as the concatenation of its kind, its outputs' shapes and its neighbours.

        embedding = [tunable vector of its kind | sizes, zero-padded | who it reads from | who reads it]

    The sizes of all outputs stand one behind the other, padded with zeros to one length; neighbours are marked with 1
    in a vector with an entry for each operation.

    Args:
        operations: of the graph.
        kind_size: length of a kind's vector.

    Example:
        >>> chain = Operations(("embedding", "linear"), (((8, 4),), ((8, 9),)), ((0, 1),), num_devices=2)
        >>> OperationEmbedding(chain, kind_size=3)().shape
        torch.Size([2, 9])

    References:
        Mirhoseini et al., 2017, section 3.2.
    """

    kinds: Tensor
    fixed: Tensor

    def __init__(self, operations: Operations, kind_size: int) -> None:
        super().__init__()
        known = sorted(set(operations.kinds))
        self.of_kind = nn.Embedding(len(known), kind_size)
        numbers = [known.index(kind) for kind in operations.kinds]
        # The graph is no part of what is learned: it is given again when a checkpoint is loaded.
        self.register_buffer("kinds", torch.tensor(numbers), persistent=False)
        fixed = torch.cat([_sizes(operations), _neighbours(operations)], dim=1)
        self.register_buffer("fixed", fixed, persistent=False)

    @property
    def size(self) -> int:
        """Length of an operation's vector."""
        return self.of_kind.embedding_dim + self.fixed.shape[1]

    def forward(self) -> Tensor:
        """Vectors of all operations, of shape [operations, size]."""
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
