"""Images from files."""

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bow.data import DataSplits, ShiftedAndMirrored, cifar10, fashion_mnist, mnist, open_stream
from bow.data.images import FASHION_MNIST_ROOT, read_idx
from bow.errors import DataError

CONTENT = b"\0\0\x08\x02" + struct.pack(">2I", 2, 3) + bytes(range(6))


def _write(directory: Path, content: bytes, name: str = "data-idx2-ubyte") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


def test_elements_come_in_row_major_order(tmp_path: Path) -> None:
    assert read_idx(_write(tmp_path, CONTENT), 2).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_compressed_files_are_read(tmp_path: Path) -> None:
    path = _write(tmp_path, gzip.compress(CONTENT), "data-idx2-ubyte.gz")
    assert read_idx(path, 2).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with 0x instead of 0x00000802"),
        (b"<html>not found</html>", "starts with 0x3c68746d instead of 0x00000802"),
        (b"\0\0\x08\x03" + CONTENT[4:], "starts with 0x00000803 instead of 0x00000802"),
        (b"\0\0\x0d\x02" + CONTENT[4:], "starts with 0x00000d02 instead of 0x00000802"),
        (CONTENT[:9], "ends within its header, after 9 bytes"),
        (CONTENT[:-1], "promises 2 x 3 bytes and has 5"),
        (CONTENT + b"\0", "promises 2 x 3 bytes and has 7"),
        (b"\0\0\x08\x02" + struct.pack(">2I", 0, 3), "holds no elements"),
    ],
    ids=["empty", "html", "dimensions", "type", "header", "truncated", "too long", "no elements"],
)
def test_corrupt_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = _write(tmp_path, content)
    with pytest.raises(DataError, match=message) as error:
        read_idx(path, 2)
    assert str(path) in str(error.value)
    assert "get the file again" in str(error.value)


@pytest.mark.parametrize("damage", ["not compressed", "truncated", "flipped"])
def test_damaged_compression_is_refused(tmp_path: Path, damage: str) -> None:
    compressed = bytearray(gzip.compress(CONTENT))
    if damage == "not compressed":
        compressed = bytearray(CONTENT)
    elif damage == "truncated":
        del compressed[-6:]
    else:
        compressed[12] ^= 0xFF
    with pytest.raises(DataError, match=r"is damaged .*; get the file again"):
        read_idx(_write(tmp_path, bytes(compressed), "data.gz"), 2)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path, 2)


loaders = pytest.mark.parametrize("load", [mnist, fashion_mnist])


def _write_part(root: Path, part: str, labels: list[int], num_images: int | None = None, size: int = 28) -> None:
    count = len(labels) if num_images is None else num_images
    pixels = bytes(index % 251 for index in range(count * size * size))
    images = b"\0\0\x08\x03" + struct.pack(">3I", count, size, size) + pixels
    (root / f"{part}-images-idx3-ubyte").write_bytes(images)
    content = b"\0\0\x08\x01" + struct.pack(">I", len(labels)) + bytes(labels)
    (root / f"{part}-labels-idx1-ubyte").write_bytes(content)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    _write_part(tmp_path, "train", [0, 9, 4])
    _write_part(tmp_path, "t10k", [7, 1])
    return tmp_path


@loaders
def test_files_become_normalised_images_and_labels(load: Callable[..., DataSplits], root: Path) -> None:
    splits = load(root)
    images, labels = splits.train
    assert images.shape == (3, 1, 28, 28)
    assert images.dtype == torch.float32
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert labels.tolist() == [0, 9, 4]
    assert splits.validation[0].shape == (2, 1, 28, 28)
    assert splits.validation[1].tolist() == [7, 1]
    assert splits.classes == 10
    assert splits.name == load.__name__


@loaders
def test_limit_is_passed_on(load: Callable[..., DataSplits], root: Path) -> None:
    assert load(str(root), limit=2).train[1].tolist() == [0, 9]


@loaders
def test_missing_files_are_named_with_the_remedy(load: Callable[..., DataSplits], root: Path) -> None:
    (root / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte is missing, .*; .* set root to"):
        load(root)


def test_mnist_without_root_says_how_to_get_it() -> None:
    with pytest.raises(DataError, match="root=None; download the four IDX files"):
        mnist()


def test_numbers_of_images_and_labels_must_agree(root: Path) -> None:
    _write_part(root, "train", [1, 2, 3], num_images=2)
    with pytest.raises(DataError, match="holds 2 images and train-labels-idx1-ubyte 3 labels"):
        mnist(root)


def test_labels_beyond_the_classes_are_refused(root: Path) -> None:
    _write_part(root, "t10k", [1, 10])
    with pytest.raises(DataError, match="holds the label 10 of 10 classes"):
        mnist(root)


def test_images_of_another_size_are_refused(root: Path) -> None:
    _write_part(root, "t10k", [1, 2], size=8)
    with pytest.raises(DataError, match="8x8 pixels instead of 28x28"):
        mnist(root)


@pytest.mark.skipif(
    not FASHION_MNIST_ROOT.is_dir(), reason="needs Fashion-MNIST: Debian's package dataset-fashion-mnist"
)
def test_the_real_fashion_mnist_loads() -> None:
    splits = fashion_mnist()
    assert splits.train[0].shape == (60_000, 1, 28, 28)
    assert splits.validation[0].shape == (10_000, 1, 28, 28)
    assert splits.train[1].bincount().tolist() == [6_000] * 10
    assert splits.validation[1].bincount().tolist() == [1_000] * 10


RED, GREEN, BLUE = (bytes([value]) * 1024 for value in (10, 20, 30))
BLACK = bytes(3072)


def _write_cifar(directory: Path) -> None:
    for number in range(1, 6):
        (directory / f"data_batch_{number}.bin").write_bytes(bytes([number]) + RED + GREEN + BLUE)
    (directory / "test_batch.bin").write_bytes(b"\x09" + RED + GREEN + BLUE + b"\x00" + BLACK)


@pytest.fixture
def cifar_root(tmp_path: Path) -> Path:
    _write_cifar(tmp_path)
    # Something for the statistics of every channel to vary over.
    (tmp_path / "data_batch_5.bin").write_bytes(b"\x05" + BLACK)
    return tmp_path


def test_records_become_normalised_images_and_labels(cifar_root: Path) -> None:
    splits = cifar10(cifar_root, augment=False)
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
    _write_cifar(inner)
    assert len(cifar10(tmp_path, limit=3).train) == 3


def test_missing_cifar_files_are_named_with_the_remedy(cifar_root: Path) -> None:
    (cifar_root / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin is missing; unpack .* set root"):
        cifar10(cifar_root)


def test_training_pictures_are_augmented(cifar_root: Path) -> None:
    splits = cifar10(cifar_root)
    assert isinstance(splits.train, ShiftedAndMirrored)
    assert torch.equal(splits.train.tensors[0], cifar10(cifar_root, augment=False).train[0])
    assert isinstance(splits.validation[0], torch.Tensor)


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
def test_corrupt_cifar_files_are_refused(cifar_root: Path, content: bytes, message: str) -> None:
    (cifar_root / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        cifar10(cifar_root)


def _pickled(labels: list[int], rows: bytes) -> bytes:
    """A file of the version for Python, as Python 2 wrote it: protocol 2, and strings of bytes."""

    def text(content: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(content)) + content

    shape = b"M" + struct.pack("<H", len(labels)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01"
    array += shape + dtype + b"K\x00tb\x89" + text(rows) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + b"".join(text(b"leptodactylus_pentadactylus_s_000004.png") for _ in labels) + b"e"
    entries = [text(b"batch_label"), text(b"training batch 1 of 5"), text(b"labels"), numbers, text(b"data"), array]
    return b"\x80\x02}(" + b"".join(entries) + text(b"filenames") + names + b"u."


@pytest.fixture
def pickled_root(cifar_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    inner = (root := tmp_path_factory.mktemp("pickled")) / "cifar-10-batches-py"
    inner.mkdir()
    for path in cifar_root.glob("*.bin"):
        records = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).view(-1, 3073)
        (inner / path.stem).write_bytes(_pickled(records[:, 0].tolist(), records[:, 1:].numpy().tobytes()))
    return root


def test_the_version_for_python_holds_the_same(cifar_root: Path, pickled_root: Path) -> None:
    binary, pickled = cifar10(cifar_root, augment=False), cifar10(pickled_root, augment=False)
    for one, other in zip((*binary.train, *binary.validation), (*pickled.train, *pickled.validation), strict=True):
        assert torch.equal(one, other)


class _Calls:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return eval, ("1",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "is damaged"),
        (_pickled([1], BLACK)[:-40], "is damaged"),
        (pickle.dumps(_Calls()), r"is damaged .*refers to builtins\.eval.*; get the file again"),
        (_pickled([10], BLACK), "holds the label 10 of 10 classes"),
        (_pickled([1, 2], BLACK + BLACK).replace(b"labels", b"others"), "is damaged"),
        (
            _pickled([1, 2], BLACK + BLACK).replace(b"K\x01K\x02e", b"K\x01e"),
            "holds no pictures of 3072 bytes with a label",
        ),
    ],
    ids=["html", "truncated", "calls", "label", "no labels", "lengths"],
)
def test_corrupt_pickles_are_refused(pickled_root: Path, content: bytes, message: str) -> None:
    (pickled_root / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=message):
        cifar10(pickled_root)


def test_pictures_are_shifted_and_mirrored_as_seed_and_place_say() -> None:
    picture = torch.arange(1.0, 1 + 2 * 5 * 4).view(1, 2, 5, 4)
    data = ShiftedAndMirrored(picture.expand(400, -1, -1, -1), torch.arange(400), padding=1)
    first, again, later = (open_stream(data, batch_size=400, seed=seed).deal(1) for seed in (0, 0, 1))
    (images, labels), (same, _), (others, _) = (deal.batches[0] for deal in (first, again, later) if deal)
    assert torch.equal(images, same)
    assert not torch.equal(images, others)
    assert sorted(labels.tolist()) == list(range(400))
    padded = torch.nn.functional.pad(picture[0], [1] * 4)
    windows = [padded[:, top : top + 5, left : left + 4] for top in range(3) for left in range(3)]
    allowed = [*windows, *(window.flip(2) for window in windows)]
    counts = [sum(torch.equal(image, each) for image in images) for each in allowed]
    assert sum(counts) == 400  # nothing else comes of a picture
    assert min(counts) >= 8  # and each of these: 22 expected
