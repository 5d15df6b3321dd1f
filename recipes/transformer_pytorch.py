"""A character language model with a small transformer in plain PyTorch: one model, one loop.

    python recipes/transformer_pytorch.py

The settings are those of transformer.py.
"""

import time

import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

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

train = DataLoader(TensorDataset(*data.train), batch_size=BATCH_SIZE, shuffle=True)
validation = DataLoader(TensorDataset(*data.validation), batch_size=256)
optimizer = AdamW(model.parameters(), lr=0.002)

for epoch in range(1, EPOCHS + 1):
    start = time.perf_counter()
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    rate = len(train.dataset) / (time.perf_counter() - start)

    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, targets in validation:
            correct += int((model(inputs).argmax(-1) == targets).sum())
            total += targets.numel()
    print(f"epoch {epoch}  accuracy {correct / total:.2%}  {rate:,.0f} samples/s")
