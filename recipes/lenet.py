"""LeNet on handwritten digits of 8x8 pixels: four learners, with model averaging.

    python recipes/lenet.py

lenet_pytorch.py is the same in plain PyTorch; the difference between the two files is what bow adds.
The settings are those of `bow train recipe=lenet`.
"""

import functools

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

import bow
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

result = bow.train(
    model,
    data.train,
    nn.functional.cross_entropy,
    optimizer=functools.partial(SGD, lr=0.02, momentum=0.9),
    scheduler=functools.partial(CosineAnnealingLR, T_max=EPOCHS),
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    learners=4,
    validation=data.validation,
)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
