"""Open user data as a stream of batches: tensors, data sets, loaders."""

import contextlib
import functools
import os
import random
import signal
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, default_collate

from bow.data.splits import SyntheticSamples
from bow.data.stream import (
    Batch,
    Batches,
    BatchStream,
    Deal,
    IndexedStream,
    SampleOrder,
    TensorSamples,
    TensorStream,
    check_seed,
)
from bow.errors import DataError, SettingError, reason
from bow.seeds import derive_seed
from bow.values import whole

ORDER_BYTES = torch.int64.itemsize  # of each sample, for its place in an epoch


class PrivateRandom:
    """A private random state of torch (CPU), `generators`, Python and NumPy, in effect only inside `active()`."""

    def __init__(self, seed: int, generators: Iterable[torch.Generator] = ()) -> None:
        self._generators = (torch.default_generator, *generators)
        drawn = [torch.Generator(each.device).manual_seed(seed).get_state() for each in self._generators]
        self._states: Any = drawn, random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Use this state; the next `active()` continues where this one ends."""
        outside = self._exchange(self._states)
        try:
            yield
        finally:
            self._states = self._exchange(outside)

    def _exchange(self, states: Any) -> Any:
        """Set the states; return those before."""
        before = [each.get_state() for each in self._generators], random.getstate(), np.random.get_state()
        for generator, state in zip(self._generators, states[0], strict=True):
            generator.set_state(state)
        random.setstate(states[1])
        np.random.set_state(states[2])
        return before


class DatasetStream(IndexedStream):
    """A stream over a map-style dataset, read in this process and collated by torch's default collation."""

    def __init__(self, dataset: Any, batch_size: int, epochs: int | None, seed: int) -> None:
        super().__init__(SampleOrder(num_samples(dataset), seed), batch_size, epochs)
        self._dataset = dataset

    def full_round(self, start: int, learners: int) -> Batches:
        size = self.batch_size
        return [self.batch(start + learner * size, size) for learner in range(learners)]

    def batch(self, start: int, count: int) -> Batch:
        indices = self.order.indices(start, count).tolist()
        with PrivateRandom(derive_seed(self.order.seed, start)).active():
            return read_batch(self._dataset, indices)


def num_samples(dataset: Any) -> int:
    name = f"the data set {type(dataset).__name__}"
    try:
        count = len(dataset)
    except TypeError as error:
        raise DataError(f"{name} has no length; define __len__, or make it an IterableDataset") from error
    except (ValueError, OverflowError) as error:
        raise DataError(f"{name} has a length that is none ({reason(error)}); correct its __len__") from error
    if count == 0:
        raise DataError(f"{name} has 0 samples; give at least one")
    if count * ORDER_BYTES > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        raise DataError(
            f"{name} says that it has {count} samples, whose order alone takes {count * ORDER_BYTES / 2**30:.3g} GiB "
            f"of {memory / 2**30:.3g} GiB; correct its __len__, or make it an IterableDataset"
        )
    return count


def read_batch(dataset: Any, indices: list[int]) -> Batch:
    """Read samples, in one call if the dataset supports it (`__getitems__`), and collate them."""
    read_all = getattr(dataset, "__getitems__", None)
    try:
        samples = read_all(indices) if callable(read_all) else [dataset[index] for index in indices]
    except IndexError as error:
        raise missing_sample(dataset, error) from error
    return as_dictionary(default_collate(samples))


def as_dictionary(batch: Batch) -> Batch:
    """Convert a batch that is another mapping, such as a tokenizer's `BatchEncoding`, to a plain dictionary."""
    return dict(batch) if isinstance(batch, Mapping) and not isinstance(batch, dict) else batch


def missing_sample(dataset: Any, error: IndexError) -> DataError:
    return DataError(
        f"the data set {type(dataset).__name__} says that it has {len(dataset)} samples, and raises IndexError "
        f"({reason(error)}) for one of them; correct its __len__ or __getitem__"
    )


class LoaderStream(BatchStream):
    """A stream over the batches of a `DataLoader`, with its own batch size, workers and collation."""

    def __init__(self, loader: DataLoader[Any], epochs: int | None, seed: int) -> None:
        if isinstance(loader.sampler, RandomSampler) and not loader.sampler.replacement:
            num_samples(loader.sampler.data_source)
        self.samples_per_epoch = _samples_per_epoch(loader)
        self.batch_size = loader.batch_size
        self._loader = loader
        self._epochs = epochs
        self._seed = seed
        self._epoch = 0
        self._batches_of_epoch = 0
        self._told = 0  # changes of the epoch that was told, up to when this pass told its own
        self._pass: Iterator[Batch] | None = None
        self._next: Batch | None = None

    @property
    def epochs(self) -> int:
        return self._epoch

    def deal(self, learners: int, own: range | None = None) -> Deal | None:
        batches: list[Batch | None] = [self._take() for _ in range(learners)]
        if batches[0] is None:
            return None
        sizes = [0 if batch is None else count_samples(batch) for batch in batches]
        own = range(learners) if own is None else own
        return Deal(batches[own.start : own.stop], sizes[own.start : own.stop], sum(sizes), self._epoch)

    def peek(self) -> Batch:
        if self._pass is None:
            self._begin()
        count_samples(self._next)
        return self._next

    def rounds_left(self, learners: int) -> int | None:
        num_batches = _length(self._loader, self._loader)
        if self._epochs is None or num_batches is None:
            return None
        left = (self._epochs - self._epoch) * num_batches - self._batches_of_epoch
        return max(0, -(-left // learners))

    def go_on(self) -> None:
        """Go on with the epoch under way after others may have read the same data set."""
        if self._pass is not None and self._told != _told.changes:
            _tell_epoch(self._loader.dataset, self._epoch)
            self._told = _told.changes

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "batches_of_epoch": self._batches_of_epoch, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_seed(state["seed"], self._seed)
        self._epoch = state["epoch"]
        self._batches_of_epoch = 0
        self._pass = self._next = None
        for _ in range(state["batches_of_epoch"]):
            self._take()
        if (self._epoch, self._batches_of_epoch) != (state["epoch"], state["batches_of_epoch"]):
            raise DataError(
                f"the checkpoint was made after {state['batches_of_epoch']} batches of an epoch, which the "
                "DataLoader no longer has; resume with the same data and batch size"
            )

    def _begin(self) -> None:
        self._pass = one_pass(self._loader, self._seed, self._epoch)
        self._next = next(self._pass, None)
        self._told = _told.changes
        if self._next is None:
            raise DataError("the DataLoader yields no batches; give it more samples or drop_last=False")

    def _take(self) -> Batch | None:
        # Read one batch ahead: only then is it known whether the epoch is complete.
        if self._pass is None:
            if self._epoch == self._epochs:
                return None
            self._begin()
        assert self._pass is not None
        batch, self._next = self._next, next(self._pass, None)
        self._batches_of_epoch += 1
        if self._next is None:
            self._pass = None
            self._epoch += 1
            self._batches_of_epoch = 0
        return batch


def one_pass(loader: DataLoader[Any], seed: int, epoch: int) -> Iterator[Batch]:
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    for part in (loader.dataset, *samplers):
        _tell_epoch(part, epoch)
    own = (getattr(part, "generator", None) for part in (loader, *samplers))
    private = PrivateRandom(derive_seed(seed, epoch), [each for each in own if isinstance(each, torch.Generator)])
    with private.active():
        batches = _begun(loader)
    while True:
        with private.active():
            try:
                batch = next(batches)
            except StopIteration:
                return
            except IndexError as error:
                if is_iterable(loader):
                    raise
                raise missing_sample(loader.dataset, error) from error
        yield as_dictionary(batch)


def _begun(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Start a pass over the loader; workers ignore SIGINT and SIGHUP, since training may still need their batches."""
    given = loader.worker_init_fn
    if loader.num_workers:
        vars(loader)["_iterator"] = None  # discard persistent workers: torch seeds workers when they start
        loader.worker_init_fn = functools.partial(_shielded, given)
    try:
        return iter(loader)
    finally:
        loader.worker_init_fn = given


def _shielded(given: Callable[[int], None] | None, worker: int) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if given is not None:
        given(worker)


def count_samples(batch: Batch) -> int:
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return len(leaf)
    raise DataError(
        f"the DataLoader yields {type(batch).__name__} without tensors that have a sample dimension; "
        "let its collate_fn return tensors [batch, ...] in tuples, lists or dicts"
    )


def is_iterable(data: object) -> bool:
    return isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset)


@dataclass
class _Told:
    """The epoch that was told last, to whichever, since a data set may pass it on to another; how often it changed."""

    epoch: int = 0
    changes: int = 0


_told = _Told()


def _tell_epoch(part: Any, epoch: int) -> None:
    if callable(set_epoch := getattr(part, "set_epoch", None)):
        set_epoch(epoch)
        _told.changes += epoch != _told.epoch
        _told.epoch = epoch


def _samples_per_epoch(loader: DataLoader[Any]) -> int | None:
    if loader.batch_size is None or (count := _length(loader, loader.sampler)) is None:
        return None
    return count - count % loader.batch_size if loader.drop_last else count


def _length(loader: DataLoader[Any], part: Any) -> int | None:
    """Return the length of the loader or its sampler; None if unknown, or an iterable dataset's guess."""
    if is_iterable(loader):
        return None
    try:
        return len(part)
    except TypeError:
        return None
    except (ValueError, OverflowError) as error:
        name = type(loader.dataset).__name__
        raise DataError(
            f"the data set {name} has a length that is none ({reason(error)}); correct its __len__"
        ) from error


DEFAULT_BATCH_SIZE = 16
DEFAULT_EVALUATION_BATCH_SIZE = 256


class LoadedBatches(IterableDataset[Batch]):
    """The batches of a loader other than torch's, restarted for every pass."""

    def __init__(self, loader: Iterable[Batch]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)


def allows_one_pass(data: Any) -> bool:
    """Whether all passes over another library's loader share one iterator, which each restarts, as torchdata's do."""
    source = getattr(data, "dataset", None)
    if not isinstance(source, LoadedBatches) or isinstance(source.loader, IterableDataset):  # webdataset's start anew
        return False
    return iter(source.loader) is iter(source.loader)


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


def evaluation_batches(
    data: Any, batch_size: int | None = None, *, setting: str = "validation.batch_size"
) -> Iterator[Batch]:
    """Return batches in order, once, the last one possibly smaller; of 256 samples, or the loader's own size."""
    data = as_torch_data(data)
    size = DEFAULT_EVALUATION_BATCH_SIZE if batch_size is None else whole(setting, batch_size)
    if isinstance(data, DataLoader):
        if batch_size not in (None, data.batch_size):
            raise _batch_size_conflict(setting, size, data)
        return one_pass(data, seed=0, epoch=0)
    if isinstance(data, IterableDataset):
        return one_pass(DataLoader(data, batch_size=size), seed=0, epoch=0)
    if (tensors := _tensors(data)) is not None:
        return tensors.batches(size)
    return _read_in_order(_map_dataset(data), size)


def is_in_memory(data: Any) -> bool:
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
    if not isinstance(data, list) or not data or not all(isinstance(each, (tuple, list)) for each in data):
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
    if (error := _samples(data)) is not None:
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
