"""Streaming a map-style dataset, sample by sample."""

from typing import Any, Protocol, runtime_checkable

from torch.utils.data import default_collate

from bow.data.order import SampleOrder
from bow.data.randomness import PrivateRandom
from bow.data.stream import Batch, IndexedStream
from bow.errors import DataError, reason
from bow.seeds import derive_seed


@runtime_checkable
class MapDataset(Protocol):
    """What `torch.utils.data.Dataset` promises, with a length; other classes with these methods do too."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """One sample."""
        ...


class DatasetStream(IndexedStream):
    """A stream over a map-style dataset, read in this process and put together by torch's default collation.

    What the dataset draws from torch's random numbers (augmentation) depends on the seed and the batch's
    place in the stream only. For worker processes or another collation give bow a `DataLoader`.

    Raises:
        DataError: the dataset has no length, or is empty.
    """

    def __init__(self, dataset: MapDataset, batch_size: int, epochs: int | None, seed: int) -> None:
        super().__init__(SampleOrder(num_samples(dataset), seed), batch_size, epochs)
        self._dataset = dataset

    def full_round(self, start: int, learners: int) -> tuple[Any, bool]:  # noqa: D102
        size = self.batch_size
        return [self.batch(start + learner * size, size) for learner in range(learners)], False

    def batch(self, start: int, count: int) -> Batch:  # noqa: D102
        indices = self.order.indices(start, count).tolist()
        with PrivateRandom(derive_seed(self.order.seed, start)).active():
            return read_batch(self._dataset, indices)


def num_samples(dataset: MapDataset) -> int:
    """Samples in a dataset.

    Raises:
        DataError: the dataset has no length, or is empty.
    """
    try:
        count = len(dataset)
    except TypeError as error:
        raise DataError(
            f"the data set {type(dataset).__name__} has no length; define __len__, or make it an IterableDataset"
        ) from error
    if count == 0:
        raise DataError(f"the data set {type(dataset).__name__} has 0 samples; give at least one")
    return count


def read_batch(dataset: MapDataset, indices: list[int]) -> Batch:
    """Read samples, all at once where the dataset can (`__getitems__`), and collate them."""
    read_all = getattr(dataset, "__getitems__", None)
    try:
        samples = read_all(indices) if callable(read_all) else [dataset[index] for index in indices]
    except IndexError as error:
        raise missing_sample(dataset, error) from error
    return default_collate(samples)


def missing_sample(dataset: Any, error: IndexError) -> DataError:
    """What to raise where a data set raises `IndexError` for a sample that it should have."""
    return DataError(
        f"the data set {type(dataset).__name__} says that it has {len(dataset)} samples, and raises IndexError "
        f"({reason(error)}) for one of them; correct its __len__ or __getitem__"
    )
