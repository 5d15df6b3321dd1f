"""A data set in two parts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bow.values import whole


@dataclass(frozen=True)
class DataSplits:
    """Tensors to train on, and tensors held out.

    Attributes:
        train: inputs `[samples, ...]` and targets.
        validation: the held-out part, in the same form.
        classes: number of classes; of a text, the size of the vocabulary.
        name: the data set's name.
    """

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    classes: int
    name: str

    def limited(self, limit: int | None) -> "DataSplits":
        """The same data with the first `limit` training samples only; None keeps all.

        Raises:
            SettingError: the limit is below 1.
        """
        if limit is None:
            return self
        limit = whole("limit", limit)
        inputs, targets = self.train
        return DataSplits((inputs[:limit], targets[:limit]), self.validation, self.classes, self.name)


def standardize(train: Tensor, validation: Tensor) -> tuple[Tensor, Tensor]:
    """Scale images `[samples, channels, height, width]` by the mean and deviation of the training images.

    The statistics are one number per channel. Returns float32.
    """
    train, validation = train.to(torch.float32, copy=True), validation.to(torch.float32, copy=True)
    deviation, mean = torch.std_mean(train, dim=(0, 2, 3), keepdim=True, correction=0)
    return train.sub_(mean).div_(deviation), validation.sub_(mean).div_(deviation)
