"""Reading IDX files, the format of MNIST."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from bow.errors import DataError
from bow.values import given_path

_UNSIGNED_BYTE = 0x08


def read_idx(path: str | Path, num_dimensions: int) -> UInt8[Tensor, "..."]:
    """Read an IDX file of unsigned bytes, plain or compressed with gzip (a name that ends in .gz).

    An IDX file is two zero bytes, the element type (8: unsigned byte), the number of dimensions, each
    dimension as a big-endian 32-bit integer, and the elements in row-major order.

    Args:
        path: the file.
        num_dimensions: how many dimensions are expected: 3 for images, 1 for labels.

    Raises:
        DataError: the file cannot be read, or is not what its name says.
    """
    path = given_path("path", path)
    content = _read(path)
    magic = bytes((0, 0, _UNSIGNED_BYTE, num_dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{path} is not an IDX file of bytes in {num_dimensions} dimensions: it starts with "
            f"0x{content[:4].hex()} instead of 0x{magic.hex()}; get the file again"
        )
    header = 4 + 4 * num_dimensions
    if len(content) < header:
        raise DataError(f"{path} ends within its header, after {len(content)} bytes; get the file again")
    shape = struct.unpack(f">{num_dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(
            f"{path} promises {' x '.join(map(str, shape))} bytes and has {len(content) - header}; get the file again"
        )
    if math.prod(shape) == 0:
        raise DataError(f"{path} holds no elements; get the file again")
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(shape)


def _read(path: Path) -> bytearray:
    # A bytearray because torch warns about tensors on memory that must not be written.
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return bytearray(file.read())
        return bytearray(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); get the file again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path and permissions") from error
