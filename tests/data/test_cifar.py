from pathlib import Path

import pytest
import torch

from bow.data import cifar10
from bow.errors import DataError

RED, GREEN, BLUE = (bytes([value]) * 1024 for value in (10, 20, 30))
BLACK = bytes(3072)


def _write(directory: Path) -> None:
    for number in range(1, 6):
        (directory / f"data_batch_{number}.bin").write_bytes(bytes([number]) + RED + GREEN + BLUE)
    (directory / "test_batch.bin").write_bytes(b"\x09" + RED + GREEN + BLUE + b"\x00" + BLACK)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    _write(tmp_path)
    # Something for the statistics of every channel to vary over.
    (tmp_path / "data_batch_5.bin").write_bytes(b"\x05" + BLACK)
    return tmp_path


def test_records_become_normalised_images_and_labels(root: Path) -> None:
    splits = cifar10(root)
    images, labels = splits.train
    assert images.shape == (5, 3, 32, 32)
    assert images.dtype == torch.float32
    assert labels.tolist() == [1, 2, 3, 4, 5]
    assert images.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert splits.validation[1].tolist() == [9, 0]
    # Four of five images are coloured: (1 - 0.8) / sqrt(0.8 * 0.2) = 0.5 in each channel.
    assert torch.allclose(splits.validation[0][0], torch.full((3, 32, 32), 0.5))


def test_the_archive_s_own_directory_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    _write(inner)
    assert len(cifar10(tmp_path, limit=3).train[0]) == 3


def test_missing_files_are_named_with_the_remedy(root: Path) -> None:
    (root / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin is missing; unpack .* set root"):
        cifar10(root)


def test_root_is_needed() -> None:
    with pytest.raises(DataError, match="root=None; unpack"):
        cifar10()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes, which is not a multiple of the 3073"),
        (bytes(3072), "has 3072 bytes"),
        (b"\x0a" + BLACK, "holds the label 10 of 10 classes"),
    ],
    ids=["empty", "truncated", "label"],
)
def test_corrupt_files_are_refused(root: Path, content: bytes, message: str) -> None:
    (root / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        cifar10(root)
