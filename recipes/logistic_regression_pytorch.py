"""Logistic regression on handwritten digits of 8x8 pixels in plain PyTorch: one model, one loop.

    python recipes/logistic_regression_pytorch.py

The settings are those of logistic_regression.py.
"""

import time

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from bow.data import digits

EPOCHS, BATCH_SIZE = 20, 4

torch.manual_seed(0)
data = digits()
model = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8, 10))

train = DataLoader(TensorDataset(*data.train), batch_size=BATCH_SIZE, shuffle=True)
validation = DataLoader(TensorDataset(*data.validation), batch_size=256)
optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)

for epoch in range(1, EPOCHS + 1):
    start = time.perf_counter()
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    rate = len(train.dataset) / (time.perf_counter() - start)

    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, targets in validation:
            correct += int((model(inputs).argmax(-1) == targets).sum())
            total += targets.numel()
    print(f"epoch {epoch}  accuracy {correct / total:.2%}  {rate:,.0f} samples/s")
