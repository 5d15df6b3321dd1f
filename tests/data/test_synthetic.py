import pytest
import torch

from bow.data import SyntheticSamples, synthetic_images
from bow.errors import SettingError


def test_shapes_follow_the_arguments() -> None:
    splits = synthetic_images(samples=20, shape=(1, 8, 6), classes=3)
    assert isinstance(splits.limited(10).train, SyntheticSamples)
    assert splits.train[0].shape == (20, 1, 8, 6)
    assert splits.validation[0].shape == (4, 1, 8, 6)
    assert set(splits.train[1].tolist()) <= {0, 1, 2}
    assert splits.classes == 3


def test_the_same_seed_gives_the_same_images() -> None:
    first, same, other = (synthetic_images(samples=8, seed=seed).train[0] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_what_is_learned_in_training_holds_in_validation() -> None:
    splits = synthetic_images(samples=500, shape=(3, 16, 16), classes=4, contrast=0.3)
    images, labels = splits.train
    means = torch.stack([images[labels == label].mean(0) for label in range(4)])
    held_out, held_out_labels = splits.validation
    nearest = torch.cdist(held_out.flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == held_out_labels).float().mean() > 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples must be .*at least 1, got 0"),
        ({"classes": -1}, "classes must be .*at least 1, got -1"),
        ({"shape": (8, 8)}, r"shape must be channels, height and width, got \[8, 8\]"),
        ({"shape": (1, 0, 8)}, r"got \[1, 0, 8\]"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        synthetic_images(**arguments)  # type: ignore[arg-type]
