"""A data set in two parts."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bow.values import whole


class SyntheticSamples(NamedTuple):
    """A pair of tensors that are made up: trainings on them say so."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class DataSplits:
    """Tensors to train on, and tensors held out.

    Attributes:
        train: inputs `[samples, ...]` and targets, or a data set that gives such samples.
        validation: the held-out part, inputs and targets.
        classes: number of classes; of a text, the size of the vocabulary.
        name: the data set's name.
    """

    train: Any
    validation: tuple[Tensor, Tensor]
    classes: int
    name: str

    def limited(self, limit: int | None) -> "DataSplits":
        """The same data with the first `limit` training samples only; None keeps all."""
        if limit is None:
            return self
        limit = whole("limit", limit)
        return replace(self, train=tree_map(lambda tensor: tensor[:limit], self.train))


def standardize(train: Tensor, validation: Tensor) -> tuple[Tensor, Tensor]:
    """Images `[samples, channels, height, width]`, by mean and deviation of each channel in training, as float32."""
    train, validation = train.to(torch.float32, copy=True), validation.to(torch.float32, copy=True)
    deviation, mean = torch.std_mean(train, dim=(0, 2, 3), keepdim=True, correction=0)
    return train.sub_(mean).div_(deviation), validation.sub_(mean).div_(deviation)
