"""Logistic regression on handwritten digits of 8x8 pixels: eight learners, with model averaging.

    python recipes/logistic_regression.py

logistic_regression_pytorch.py is the same in plain PyTorch; the difference between the two files is what bow adds.
The settings are those of `bow train recipe=logistic_regression`.
"""

import functools

import torch
from torch import nn
from torch.optim import SGD

import bow
from bow.data import digits

EPOCHS, BATCH_SIZE = 20, 4

torch.manual_seed(0)
data = digits()
model = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8, 10))

result = bow.train(
    model,
    data.train,
    nn.functional.cross_entropy,
    optimizer=functools.partial(SGD, lr=0.01, momentum=0.9),
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    learners=8,
    validation=data.validation,
)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
