"""The handwritten digits that scikit-learn ships."""

import torch

from bow.data.splits import DataSplits, standardize


def digits(limit: int | None = None) -> DataSplits:
    """The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships: real data without a download.

    Of each class every fifth digit is held out, which leaves 1,442 for training and 355 for validation.

    Args:
        limit: use the first so many training samples only.

    Raises:
        SettingError: the limit is below 1.

    References:
        Alpaydin, Kaynak: Optical recognition of handwritten digits, UCI machine learning repository, 1998.
    """
    # Imported here: scikit-learn takes a second to import, and only this data set needs it.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.as_tensor(bunch.images).unsqueeze(1)
    labels = torch.as_tensor(bunch.target, dtype=torch.int64)
    rank_in_class = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels[:, None]).squeeze(1) - 1
    held_out = rank_in_class % 5 == 4
    train, validation = standardize(images[~held_out], images[held_out])
    splits = DataSplits((train, labels[~held_out]), (validation, labels[held_out]), 10, "digits")
    return splits.limited(limit)
