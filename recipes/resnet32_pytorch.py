"""ResNet-32 on pictures of CIFAR-10's shape in plain PyTorch: one model, one loop.

    python recipes/resnet32_pytorch.py

The settings are those of resnet32.py; what concerns several learners means nothing here.
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from bow import recipe

settings = recipe("resnet32", *sys.argv[1:])
torch.manual_seed(settings["seed"])
model = settings["model"]()
optimizer = settings["optimizer"](model.parameters())
scheduler = settings["scheduler"](optimizer)
train = DataLoader(TensorDataset(*settings["data"]), batch_size=settings["batch_size"], shuffle=True)
validation = DataLoader(TensorDataset(*settings["validation"].data), batch_size=256)

for epoch in range(1, settings["epochs"] + 1):
    start = time.perf_counter()
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        settings["loss"](model(inputs), targets).backward()
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
