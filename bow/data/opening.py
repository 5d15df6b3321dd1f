"""Open user data as a stream of batches."""

from collections.abc import Container, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bow.data.loader import DatasetStream, LoaderStream, PrivateRandom, is_iterable, num_samples, one_pass, read_batch
from bow.data.splits import SyntheticSamples
from bow.data.stream import Batch, BatchStream, TensorSamples, TensorStream
from bow.errors import DataError, SettingError, reason
from bow.seeds import derive_seed
from bow.values import whole

DEFAULT_BATCH_SIZE = 16
DEFAULT_EVALUATION_BATCH_SIZE = 256


class LoadedBatches(IterableDataset[Batch]):
    """The batches of a loader other than torch's, restarted for every pass."""

    def __init__(self, loader: Iterable[Batch]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)


def open_stream(
    data: Any,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    steps: int | None = None,
    seed: int = 0,
) -> BatchStream:
    """Open a stream of training batches over the `data` argument of `bow.train`; with `steps`, an endless one."""
    data = as_torch_data(data)
    given = None if batch_size is None else whole("batch_size", batch_size)
    passes = whole("epochs", epochs) if steps is None else None
    if steps is not None:
        whole("steps", steps)
    if is_iterable(data) and steps is None:
        raise SettingError("data without a length have no epochs, got steps=None; set steps to the number of rounds")
    if isinstance(data, DataLoader):
        if given is not None and given != data.batch_size:
            raise _batch_size_conflict("batch_size", given, data)
        return LoaderStream(data, passes, seed)
    batch_size = given or DEFAULT_BATCH_SIZE
    if isinstance(data, IterableDataset):
        return LoaderStream(DataLoader(data, batch_size=batch_size), passes, seed)
    if (tensors := _tensors(data)) is not None:
        return TensorStream(tensors, batch_size, passes, seed)
    return DatasetStream(_map_dataset(data), batch_size, passes, seed)


def evaluation_batches(data: Any, batch_size: int | None = None) -> Iterator[Batch]:
    """Return batches in order, once, the last one possibly smaller; of 256 samples, or the loader's own size."""
    data = as_torch_data(data)
    size = DEFAULT_EVALUATION_BATCH_SIZE if batch_size is None else whole("validation.batch_size", batch_size)
    if isinstance(data, DataLoader):
        if batch_size not in (None, data.batch_size):
            raise _batch_size_conflict("validation.batch_size", size, data)
        return one_pass(data, seed=0, epoch=0)
    if isinstance(data, IterableDataset):
        return one_pass(DataLoader(data, batch_size=size), seed=0, epoch=0)
    if (tensors := _tensors(data)) is not None:
        return tensors.batches(size)
    return _read_in_order(_map_dataset(data), size)


def is_in_memory(data: Any) -> bool:
    """Whether data consist of tensors in memory."""
    return _tensors(data) is not None


def as_torch_data(data: Any) -> Any:
    """Convert arrays to tensors (sharing memory if possible), and other libraries' data and loaders to torch's."""
    if hasattr(data, "with_format") and (getattr(data, "format", None) or {}).get("type", "") is None:
        return data.with_format("torch")  # without it, it yields lists
    if _is_other_loader(data):
        return DataLoader(LoadedBatches(data), batch_size=None)
    if not any(isinstance(leaf, np.ndarray) for leaf in tree_leaves(data)):
        return data
    try:
        return tree_map_only(np.ndarray, lambda array: torch.as_tensor(np.require(array, None, ["C", "W"])), data)
    except (TypeError, ValueError) as error:
        raise DataError(f"an array cannot be a tensor ({reason(error)}); give numbers, as torch has them") from error


def _is_other_loader(data: Any) -> bool:
    if isinstance(data, IterableDataset):  # webdataset's: its first stage is a torch loader
        stages = getattr(data, "pipeline", None)
        return isinstance(stages, list) and any(isinstance(first, DataLoader) for first in stages[:1])
    is_known = isinstance(data, DataLoader | Container | Iterator) or hasattr(data, "__getitem__")
    return isinstance(data, Iterable) and not is_known


def _read_in_order(dataset: Any, batch_size: int) -> Iterator[Batch]:
    count = num_samples(dataset)
    for start in range(0, count, batch_size):
        with PrivateRandom(derive_seed(0, start)).active():
            batch = read_batch(dataset, list(range(start, min(start + batch_size, count))))
        yield batch


def _tensors(data: Any) -> TensorSamples | None:
    # Subclasses of TensorDataset may transform their samples, so only the class itself is unwrapped.
    if type(data) is TensorDataset:
        return TensorSamples(data.tensors)
    data = tuple(data) if isinstance(data, SyntheticSamples) else data
    leaves = tree_leaves(data)
    if leaves and all(isinstance(leaf, Tensor) for leaf in leaves):
        try:
            return TensorSamples(data)
        except DataError as error:
            raise (_samples(data) or error) from None
    return None


def _samples(data: Any) -> DataError | None:
    """What is said of a list of samples, which as a pytree is a sample itself; None for other data."""
    if not isinstance(data, list) or not all(isinstance(each, (tuple, list)) for each in data):
        return None
    return DataError(
        f"data must be tensors whose first dimension counts samples, got a list of {len(data)} "
        f"{type(data[0]).__name__}s; stack the samples (torch.stack), or wrap the list in a torch.utils.data.Dataset"
    )


def _map_dataset(data: Any) -> Any:
    is_sequence = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, type)
    is_other = isinstance(data, (list, tuple, dict, str, bytes)) or hasattr(data, "iloc")  # a frame yields columns
    if isinstance(data, Dataset) or (is_sequence and not is_other):
        return data
    if data and (error := _samples(data)) is not None:
        raise error
    leaf = next((leaf for leaf in tree_leaves(data) if not isinstance(leaf, Tensor)), None)
    held = "nothing" if leaf is None else type(leaf).__name__
    where = "" if leaf is data else f" of {held}"
    raise DataError(
        "data must be tensors with equal first dimensions, a Dataset or a DataLoader, "
        f"got {type(data).__name__}{where}; "
        "convert a column with .to_numpy(), or wrap the data in a torch.utils.data.Dataset"
    )


def _batch_size_conflict(setting: str, batch_size: int, loader: DataLoader[Any]) -> SettingError:
    own = "batches" if loader.batch_size is None else f"batch_size={loader.batch_size}"
    return SettingError(
        f"{setting}={batch_size} contradicts the DataLoader's own {own}; "
        f"leave {setting} out, or give the data set itself"
    )
