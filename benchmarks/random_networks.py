"""Random networks, for which nothing has been tuned."""

import random
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bow.models.networks import Batch, Network, Size

CLASSES, NUMBER = 10, 20

KINDS: tuple[Callable[[int], nn.Module], ...] = (
    lambda width: nn.Conv2d(width, width, 3, padding=1),
    lambda width: nn.Conv2d(width, width, 1),
    lambda width: nn.Sequential(nn.Conv2d(width, 2 * width, 5, padding=2), nn.Conv2d(2 * width, width, 1)),
    lambda width: nn.BatchNorm2d(width),
    lambda width: nn.MaxPool2d(3, stride=1, padding=1),
    lambda width: nn.AvgPool2d(3, stride=1, padding=1),
)
"""Operations of nodes, by the number of channels."""


class RandomNetwork(nn.Module):
    """A stem, nodes that each take the sum of one to three earlier ones, and a classifier of the unused outputs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        width, reach = choose.choice((8, 16, 32)), choose.choice((2, 4, 8))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.taken: list[list[int]] = []
        nodes: list[nn.Module] = []
        for node in range(choose.randint(6, 24)):
            near = range(max(0, node + 1 - reach), node + 1)  # 0 is the stem
            self.taken.append(sorted(choose.sample(near, min(len(near), choose.randint(1, 3)))))
            nodes.append(choose.choice(KINDS)(width))
        self.nodes = nn.ModuleList(nodes)
        self.output = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `[batch, classes]`."""
        made = [self.stem(images)]
        for node, taken in zip(self.nodes, self.taken, strict=True):
            made.append(node(_sum(made, taken).relu()))
        rest = set(range(len(made))) - {index for taken in self.taken for index in taken}
        logits: Tensor = self.output(_sum(made, sorted(rest)).mean((2, 3)))
        return logits


def _sum(made: list[Tensor], which: list[int]) -> Tensor:
    first, *rest = (made[index] for index in which)
    for each in rest:
        first = first + each
    return first


def _images(size: Size, samples: int) -> Batch:
    return torch.randn(samples, *size.inputs), torch.randint(CLASSES, (samples,))


def _random(seed: int) -> Network:
    choose = random.Random(-1 - seed)
    pixels = choose.choice((8, 16))
    sizes = {"tiny": Size({"seed": seed}, (3, pixels, pixels), choose.choice((4, 16, 32)))}
    return Network(f"network {seed}", RandomNetwork, cross_entropy, _images, sizes)


RANDOM: Mapping[str, Network] = {f"random{seed}": _random(seed) for seed in range(NUMBER)}
"""By name, which includes the seed."""
