"""Data sets, and the stream that deals their samples to learners."""

import importlib
from typing import TYPE_CHECKING, Any

from bow.data.opening import as_torch_data as as_torch_data
from bow.data.opening import evaluation_batches as evaluation_batches
from bow.data.opening import is_in_memory as is_in_memory
from bow.data.opening import open_stream as open_stream
from bow.data.splits import DataSplits as DataSplits
from bow.data.splits import SyntheticSamples as SyntheticSamples
from bow.data.stream import Batch as Batch
from bow.data.stream import Batches as Batches
from bow.data.stream import BatchStream as BatchStream
from bow.data.stream import Deal as Deal
from bow.data.stream import Indexed as Indexed
from bow.data.stream import Stacked as Stacked
from bow.data.stream import TensorSamples as TensorSamples
from bow.data.stream import batch_length as batch_length
from bow.data.stream import batch_of as batch_of

if TYPE_CHECKING:
    from bow.data.bundled import digits as digits
    from bow.data.bundled import synthetic_images as synthetic_images
    from bow.data.bundled import text as text
    from bow.data.images import ShiftedAndMirrored as ShiftedAndMirrored
    from bow.data.images import cifar10 as cifar10
    from bow.data.images import fashion_mnist as fashion_mnist
    from bow.data.images import mnist as mnist

# Imported on first use: trainings on other data do not need them.
_LAZY = {
    "digits": "bow.data.bundled",
    "synthetic_images": "bow.data.bundled",
    "text": "bow.data.bundled",
    "ShiftedAndMirrored": "bow.data.images",
    "cifar10": "bow.data.images",
    "fashion_mnist": "bow.data.images",
    "mnist": "bow.data.images",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'bow.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
