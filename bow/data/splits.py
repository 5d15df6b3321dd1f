"""A data set split for training and validation."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bow.values import whole


class SyntheticSamples(NamedTuple):
    """A pair of synthetic tensors; trainings on them report that."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class DataSplits:
    """A training set and a held-out validation set.

    Attributes:
        train: inputs `[samples, ...]` and targets, or a data set of such samples.
        validation: the held-out part, inputs and targets.
        classes: number of classes; for a text, the size of the vocabulary.
        name: the data set's name.
    """

    train: Any
    validation: tuple[Tensor, Tensor]
    classes: int
    name: str

    def limited(self, limit: int | None) -> "DataSplits":
        """Return the same data with only the first `limit` training samples; None keeps all."""
        if limit is None:
            return self
        limit = whole("limit", limit)
        return replace(self, train=tree_map(lambda tensor: tensor[:limit], self.train))


def standardize(train: Tensor, validation: Tensor) -> tuple[Tensor, Tensor]:
    """Normalize images `[samples, channels, height, width]` by the training set's channel mean and std, as float32."""
    train, validation = train.to(torch.float32, copy=True), validation.to(torch.float32, copy=True)
    deviation, mean = torch.std_mean(train, dim=(0, 2, 3), keepdim=True, correction=0)
    return train.sub_(mean).div_(deviation), validation.sub_(mean).div_(deviation)
