"""A character language model with a small transformer: two learners, with model averaging.

    python recipes/transformer.py

transformer_pytorch.py is the same in plain PyTorch; the difference between the two files is what bow adds.
The settings are those of `bow train recipe=transformer`.
"""

import functools

import torch
from torch import nn
from torch.optim import AdamW

import bow
from bow.data import text

EPOCHS, BATCH_SIZE = 2, 16

torch.manual_seed(0)
data = text(sequence_length=32)


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, features, mask):
        normed = self.norm1(features)
        features = features + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return features + self.feed_forward(self.norm2(features))


class Model(nn.Module):
    def __init__(self, vocabulary, context=32, width=64, heads=4, layers=2):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.register_buffer("future", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, tokens):  # [batch, length] -> logits [batch, length, vocabulary]
        features = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            features = block(features, self.future)
        return self.output(self.norm(features))


model = Model(data.classes)

result = bow.train(
    model,
    data.train,
    loss,
    optimizer=functools.partial(AdamW, lr=0.002),
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    learners=2,
    clip_norm=1.0,
    validation=data.validation,
)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
