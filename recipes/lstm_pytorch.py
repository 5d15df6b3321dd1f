"""A character language model with two LSTM layers in plain PyTorch: one model, one loop.

    python recipes/lstm_pytorch.py

The settings are those of lstm.py.
"""

import time

import torch
from torch import nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from bow.data import text

EPOCHS, BATCH_SIZE = 2, 16

torch.manual_seed(0)
data = text(sequence_length=32)


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Model(nn.Module):
    def __init__(self, vocabulary, embedding=64, hidden=128):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens):  # [batch, length] -> logits [batch, length, vocabulary]
        states, _ = self.lstm(self.embedding(tokens))
        return self.output(states)


model = Model(data.classes)

train = DataLoader(TensorDataset(*data.train), batch_size=BATCH_SIZE, shuffle=True)
validation = DataLoader(TensorDataset(*data.validation), batch_size=256)
optimizer = Adam(model.parameters(), lr=0.003)

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
