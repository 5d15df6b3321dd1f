import gzip
import struct
from pathlib import Path

import pytest

from bow.data.idx import read_idx
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
