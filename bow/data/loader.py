"""Streams over map-style datasets and DataLoaders."""

import contextlib
import functools
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, default_collate

from bow.data.stream import Batch, BatchStream, Deal, IndexedStream, SampleOrder, check_seed
from bow.errors import DataError, reason
from bow.seeds import derive_seed

ORDER_BYTES = torch.int64.itemsize  # of each sample, for its place in an epoch


class PrivateRandom:
    """A private random state of torch (CPU), Python and NumPy, in effect only inside `active()`."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()
        self._others: Any = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Use this state; the next `active()` continues where this one ends."""
        outside, others = torch.get_rng_state(), (random.getstate(), np.random.get_state())
        torch.set_rng_state(self._state)
        _set_others(*self._others)
        try:
            yield
        finally:
            self._state, self._others = torch.get_rng_state(), (random.getstate(), np.random.get_state())
            torch.set_rng_state(outside)
            _set_others(*others)


def _set_others(python: Any, numpy: Any) -> None:
    random.setstate(python)
    np.random.set_state(numpy)


class DatasetStream(IndexedStream):
    """A stream over a map-style dataset, read in this process and collated by torch's default collation."""

    def __init__(self, dataset: Any, batch_size: int, epochs: int | None, seed: int) -> None:
        super().__init__(SampleOrder(num_samples(dataset), seed), batch_size, epochs)
        self._dataset = dataset

    def full_round(self, start: int, learners: int) -> tuple[Any, bool]:
        size = self.batch_size
        return [self.batch(start + learner * size, size) for learner in range(learners)], False

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
        self._pass: Iterator[Batch] | None = None
        self._next: Batch | None = None

    @property
    def epochs(self) -> int:
        return self._epoch

    def deal(self, learners: int, own: range | None = None) -> Deal | None:
        batches: list[Batch | None] = [self._take() for _ in range(learners)]
        if batches[0] is None:
            return None
        num_samples = sum(count_samples(batch) for batch in batches if batch is not None)
        return Deal(batches if own is None else batches[own.start : own.stop], False, num_samples, self._epoch)

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
    epoch_seed = derive_seed(seed, epoch)
    _tell_epoch(loader, epoch, epoch_seed)
    private = PrivateRandom(epoch_seed)
    batches: Iterator[Batch] | None = None
    while True:
        with private.active():
            batches = _begun(loader) if batches is None else batches
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


def _tell_epoch(loader: DataLoader[Any], epoch: int, epoch_seed: int) -> None:
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    for part in (loader.dataset, *samplers):
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)
    for part in (loader, *samplers):
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(epoch_seed)


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
