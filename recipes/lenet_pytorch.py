"""LeNet on handwritten digits of 8x8 pixels in plain PyTorch: one model, one loop.

    python recipes/lenet_pytorch.py

The settings are those of lenet.py.
"""

import time

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from bow.data import digits

EPOCHS, BATCH_SIZE = 15, 16

torch.manual_seed(0)
data = digits()
model = nn.Sequential(
    nn.Conv2d(1, 20, kernel_size=5, padding=2),
    nn.MaxPool2d(2),
    nn.Conv2d(20, 50, kernel_size=5, padding=2),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(50 * 2 * 2, 500),
    nn.ReLU(),
    nn.Linear(500, 10),
)

train = DataLoader(TensorDataset(*data.train), batch_size=BATCH_SIZE, shuffle=True)
validation = DataLoader(TensorDataset(*data.validation), batch_size=256)
optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = CosineAnnealingLR(optimizer, T_max=EPOCHS)

for epoch in range(1, EPOCHS + 1):
    start = time.perf_counter()
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    scheduler.step()
    rate = len(train.dataset) / (time.perf_counter() - start)

    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, targets in validation:
            correct += int((model(inputs).argmax(-1) == targets).sum())
            total += targets.numel()
    print(f"epoch {epoch}  accuracy {correct / total:.2%}  {rate:,.0f} samples/s")
