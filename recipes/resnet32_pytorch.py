"""ResNet-32 on synthetic images of CIFAR-10's shape in plain PyTorch: one model, one loop.

    python recipes/resnet32_pytorch.py

The settings are those of resnet32.py.
"""

import time

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

from bow.data import synthetic_images

EPOCHS, BATCH_SIZE = 4, 32

torch.manual_seed(0)
data = synthetic_images(samples=2000)


class Block(nn.Module):
    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.stride, self.new_channels = stride, channels_out - channels_in

    def forward(self, inputs):
        features = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(inputs)))))
        shortcut = inputs[:, :, :: self.stride, :: self.stride]  # without parameters: option A of He et al., 2016
        half = self.new_channels // 2
        return torch.relu(features + nn.functional.pad(shortcut, (0, 0, 0, 0, half, half)))


def stage(channels_in, channels_out, stride):
    return [Block(channels_in, channels_out, stride), *(Block(channels_out, channels_out, 1) for _ in range(4))]


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    *stage(16, 16, stride=1),
    *stage(16, 32, stride=2),
    *stage(32, 64, stride=2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
)
for module in model.modules():
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

train = DataLoader(TensorDataset(*data.train), batch_size=BATCH_SIZE, shuffle=True)
validation = DataLoader(TensorDataset(*data.validation), batch_size=256)
optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
scheduler = MultiStepLR(optimizer, milestones=(3,))

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
