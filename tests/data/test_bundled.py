"""Data without a download."""

import sys

import pytest
import torch

from bow.data import SyntheticSamples, bundled, digits, synthetic_images, text
from bow.errors import DataError, SettingError


def test_digits_are_split_once_and_by_class() -> None:
    splits = digits()
    images, labels = splits.train
    held_out, held_out_labels = splits.validation
    assert images.shape == (1442, 1, 8, 8)
    assert held_out.shape == (355, 1, 8, 8)
    assert images.dtype == torch.float32
    share = held_out_labels.bincount() / (labels.bincount() + held_out_labels.bincount())
    assert splits.classes == len(share) == 10
    assert share.sub(0.2).abs().max() < 0.01


@pytest.mark.parametrize("file", [bundled._DIGITS, "somewhere else"])
def test_digits_are_scikit_learns(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.setattr(bundled, "_DIGITS", file)
    images, labels = bundled._digits.__wrapped__()
    expected = load_digits()
    assert torch.equal(images, torch.as_tensor(expected.images).unsqueeze(1))
    assert torch.equal(labels, torch.as_tensor(expected.target))


def test_digits_are_read_without_importing_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    images, _ = bundled._digits.__wrapped__()
    assert len(images) == 1797


def test_limit_of_digits() -> None:
    assert len(digits(limit=7).train[0]) == 7


def test_targets_are_the_characters_that_follow() -> None:
    splits = text(sequence_length=32)
    for tokens, targets in (splits.train, splits.validation):
        assert tokens.dtype == targets.dtype == torch.int64
        assert tokens.shape == targets.shape == (len(tokens), 32)
        assert torch.equal(tokens.flatten()[1:], targets.flatten()[:-1])


def test_tokens_cover_the_vocabulary() -> None:
    splits = text()
    everything = torch.cat([tensor.flatten() for tensor in (*splits.train, *splits.validation)])
    assert everything.unique().tolist() == list(range(splits.classes))


def test_text_is_the_same_for_every_length() -> None:
    short, long = text(sequence_length=8).train[0], text(sequence_length=64).train[0]
    assert torch.equal(short.flatten()[: 64 * 100], long.flatten()[: 64 * 100])


def test_limit_of_texts() -> None:
    assert len(text(limit=5).train[0]) == 5


@pytest.mark.parametrize("length", [0, 10_000_000])
def test_impossible_lengths_are_refused(length: int) -> None:
    with pytest.raises(SettingError, match=f"sequence_length must be from 1 to .* got {length}"):
        text(sequence_length=length)


def test_python_without_help_texts_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="comes without its help texts"):
        text()


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
