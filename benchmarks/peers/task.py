"""A requested training, and the tools that a contestant gets."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.peers.referee import Referee
from benchmarks.peers.training import Choice
from benchmarks.trainings import MOMENTUM, Feed
from bow.data import DataSplits, digits, fashion_mnist, mnist
from bow.errors import SettingError
from bow.models import MLP, LeNet

DATA: dict[str, Callable[..., DataSplits]] = {"fashion_mnist": fashion_mnist, "mnist": mnist, "digits": digits}


def read_data(name: str, root: str) -> DataSplits:
    """Read a data set of `DATA` from a folder; empty: from the default locations."""
    if root and name == "digits":
        raise SettingError(f"root={root} has no effect with data=digits, which come with scikit-learn; leave it out")
    return DATA[name](root) if root else DATA[name]()


MODELS = {"lenet": "LeNet with 20 and 50 filters and 500 hidden units", "mlp": "an MLP with 256 hidden units"}


@dataclass(frozen=True)
class Task:
    choice: Choice  # tuned settings
    seed: int  # of weights and shuffling
    stage: str  # `"rehearsal"`, `"sweep"` or `"final"`
    model: str  # a key of `MODELS`
    data: str  # a key of `DATA`
    root: str  # folder of its files; empty: the default locations
    device: str  # `"cpu"` or `"cuda"`
    target: float  # the accuracy at which the training ends
    epochs: int  # planned number of epochs, for schedules
    until: float  # epochs after which it ends: all, or fewer in a rehearsal
    limit_s: float  # maximum training time
    evaluate_every: float  # epochs between evaluations

    def load(self) -> DataSplits:
        """Read the data, and copy them to the device."""
        splits = read_data(self.data, self.root)
        train, validation = ((x.to(self.device), y.to(self.device)) for x, y in (splits.train, splits.validation))
        return DataSplits(train, validation, splits.classes, splits.name)


@dataclass(frozen=True)
class Job:
    """The arguments of a contestant."""

    task: Task
    data: DataSplits  # on the device
    referee: Referee  # measures time, evaluates, and determines the end
    rank: int = 0  # of this process, if there are several

    @property
    def choice(self) -> Choice:
        return self.task.choice

    def build(self, seed: int | None = None) -> nn.Module:
        """Build the model: with the same weights for all, unless another seed is given."""
        torch.manual_seed(self.task.seed if seed is None else seed)
        images = self.data.train[0]
        if self.task.model == "lenet":
            return LeNet(self.data.classes, images.shape[1], images.shape[-1]).to(self.task.device)
        return MLP(images[0].numel(), self.data.classes).to(self.task.device)

    @staticmethod
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    @property
    def make_optimizer(self) -> Callable[..., torch.optim.Optimizer]:
        """Return a factory of SGD with momentum: fused, because otherwise a CPU updates parameters one by one."""
        return functools.partial(torch.optim.SGD, lr=self.choice.lr, momentum=MOMENTUM, fused=True)

    def batches(self, stream: int = 0, is_last: bool = False) -> Feed:
        """Return endless batches, of images in `channels_last` on request; every stream has a different order."""
        return Feed(self.data.train, self.choice.batch_size, self.task.seed + 1000 * stream, is_last)
