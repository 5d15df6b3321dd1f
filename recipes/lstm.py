"""A character language model with two LSTM layers: two learners, with model averaging.

    python recipes/lstm.py

lstm_pytorch.py is the same in plain PyTorch; the difference between the two files is what bow adds.
The settings are those of `bow train recipe=lstm`.
"""

import functools

import torch
from torch import nn
from torch.optim import Adam

import bow
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

result = bow.train(
    model,
    data.train,
    loss,
    optimizer=functools.partial(Adam, lr=0.003),
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    learners=2,
    clip_norm=1.0,
    validation=data.validation,
)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
