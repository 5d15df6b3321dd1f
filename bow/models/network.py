"""A network together with the sizes, the data and the loss that papers trained it with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bow.errors import SettingError

Batch: TypeAlias = tuple[Any, Tensor]
"""Inputs, a tensor or a tuple of them, and targets."""


@dataclass(frozen=True)
class Size:
    """One size of a network, and of what it is trained on.

    Attributes:
        arguments: keyword arguments of the model's class.
        inputs: shape of one sample, such as channels, height and width, or the length of a text.
        batch: samples of a batch.
    """

    arguments: Mapping[str, Any]
    inputs: tuple[int, ...]
    batch: int


@dataclass(frozen=True)
class Network:
    """A network that can be built, given a batch and trained without knowing which one it is.

    Attributes:
        title: its name in reports.
        model: the model's class.
        loss: `loss(outputs, targets) -> scalar`.
        samples: makes a random batch of so many samples for a size.
        sizes: by name: `"tiny"` for two cores, and the papers'.

    Example:
        >>> import bow
        >>> network = bow.models.NETWORKS["alexnet"]
        >>> graph = bow.capture(network.build("tiny"), network.batch("tiny"), network.loss)
        >>> graph.count()["aten.convolution.default"]
        5
    """

    title: str
    model: Callable[..., nn.Module]
    loss: Callable[[Any, Any], Tensor]
    samples: Callable[[Size, int], Batch]
    sizes: Mapping[str, Size]

    def build(self, size: str = "tiny") -> nn.Module:
        """The network in a size, with weights from torch's random number generator.

        Under `with torch.device("meta"):` it, and its batch, cost no memory, and can still be captured.

        Raises:
            SettingError: it has no such size.
        """
        return self.model(**self.size(size).arguments)

    def batch(self, size: str = "tiny", samples: int | None = None, seed: int = 0) -> Batch:
        """A random batch `(inputs, targets)`, the same for the same seed; torch's generator stays as it is.

        Args:
            size: of the network.
            samples: in the batch; None: as many as the size has.
            seed: of the random numbers.

        Raises:
            SettingError: it has no such size, or the batch is empty.
        """
        chosen = self.size(size)
        count = chosen.batch if samples is None else samples
        if count < 1:
            raise SettingError(f"samples must be at least 1, got {count}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.samples(chosen, count)

    def size(self, name: str) -> Size:
        """A size by its name.

        Raises:
            SettingError: it has no such size.
        """
        if name not in self.sizes:
            raise SettingError(f"size must be one of {', '.join(self.sizes)} for {self.title}, got {name}")
        return self.sizes[name]
