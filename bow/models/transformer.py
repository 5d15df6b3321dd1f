"""Transformer language model."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import DataError, SettingError


class Transformer(nn.Module):
    """A decoder-only transformer: causal attention, pre-layer-norm, learned positions.

    Args:
        vocabulary: number of different tokens.
        width: size of the residual stream.
        heads: attention heads; they divide the width.
        layers: number of blocks.
        context: the longest sequence, in tokens.
        dropout: probability with which an activation is dropped.

    Raises:
        SettingError: the heads do not divide the width.

    References:
        Vaswani et al.: Attention is all you need, 2017.
        Radford et al.: Language models are unsupervised multitask learners, 2019.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        context: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary)
        for table in (self.tokens.weight, self.positions):
            nn.init.normal_(table, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[batch, length, vocabulary]` of the token after each of `tokens`, `[batch, length]`."""
        length, context = tokens.shape[1], len(self.positions)
        if length > context:
            raise DataError(f"a sequence of {length} tokens exceeds context={context}; raise context")
        features = self.dropout(self.tokens(tokens) + self.positions[:length])
        logits: Tensor = self.output(self.norm(self.blocks(features)))
        return logits


class TransformerBlock(nn.Module):
    """Causal self-attention and a two-layer perceptron, each added to the residual stream."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise SettingError(f"heads must divide width={width}, got {heads}")
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Return the residual stream `[batch, length, width]` after this block."""
        features = features + self.dropout(self.projection(self._attend(self.norm1(features))))
        expanded = F.gelu(self.expand(self.norm2(features)))
        contracted: Tensor = self.dropout(self.contract(expanded))
        return features + contracted

    def _attend(self, features: Tensor) -> Tensor:
        by_head = self.qkv(features).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = by_head.unbind(0)
        # Not F.scaled_dot_product_attention, which vmap on CPU runs learner by learner, with a warning.
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        attended: Tensor = scores.masked_fill(future, -math.inf).softmax(-1) @ value
        return attended.transpose(1, 2).flatten(2)
