"""Streaming a `DataLoader`: its batches are dealt as they come."""

import functools
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from bow.data.dataset import missing_sample
from bow.data.randomness import PrivateRandom
from bow.data.stream import Batch, BatchStream, Deal, check_seed
from bow.errors import DataError
from bow.seeds import derive_seed


class LoaderStream(BatchStream):
    """A stream over the batches of a `DataLoader`, which keeps its batch size, workers and collation.

    Rounds cross epoch boundaries, batches do not: the last batch of an epoch is as small as the loader makes it. Of
    several devices, each reads all batches and keeps its own. Shuffling, and what the dataset draws from torch's
    random numbers, depend on the seed and the epoch only: generators of the loader and its sampler are seeded anew
    each epoch, and whatever has a `set_epoch` is told the epoch. Going to a saved position reads that epoch's earlier
    batches again.

    Args:
        loader: the loader.
        epochs: passes over the data before the stream ends; None: endless.
        seed: any integer.
    """

    def __init__(self, loader: DataLoader[Any], epochs: int | None, seed: int) -> None:
        self.samples_per_epoch = _samples_per_epoch(loader)
        self.batch_size = loader.batch_size
        self._loader = loader
        self._epochs = epochs
        self._seed = seed
        self._epoch = 0
        self._batches_of_epoch = 0
        self._pass: Iterator[Batch] | None = None
        self._next: Batch | None = None

    def deal(self, learners: int, own: range | None = None) -> Deal | None:  # noqa: D102
        batches: list[Batch | None] = [self._take() for _ in range(learners)]
        if batches[0] is None:
            return None
        num_samples = sum(count_samples(batch) for batch in batches if batch is not None)
        return Deal(batches if own is None else batches[own.start : own.stop], False, num_samples, self._epoch)

    def rounds_left(self, learners: int) -> int | None:  # noqa: D102
        num_batches = _length(self._loader, self._loader)
        if self._epochs is None or num_batches is None:
            return None
        left = (self._epochs - self._epoch) * num_batches - self._batches_of_epoch
        return max(0, -(-left // learners))

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"epoch": self._epoch, "batches_of_epoch": self._batches_of_epoch, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: D102
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

    def _take(self) -> Batch | None:
        # The batch after it is read at once: only then is it known whether the epoch is complete.
        if self._pass is None:
            if self._epoch == self._epochs:
                return None
            self._pass = one_pass(self._loader, self._seed, self._epoch)
            self._next = next(self._pass, None)
            if self._next is None:
                raise DataError("the DataLoader yields no batches; give it more samples or drop_last=False")
        batch, self._next = self._next, next(self._pass, None)
        self._batches_of_epoch += 1
        if self._next is None:
            self._pass = None
            self._epoch += 1
            self._batches_of_epoch = 0
        return batch


def one_pass(loader: DataLoader[Any], seed: int, epoch: int) -> Iterator[Batch]:
    """The batches of one epoch, read under random numbers of their own."""
    epoch_seed = derive_seed(seed, epoch)
    _tell_epoch(loader, epoch, epoch_seed)
    random = PrivateRandom(epoch_seed)
    batches: Iterator[Batch] | None = None
    while True:
        with random.active():
            batches = _begun(loader) if batches is None else batches
            try:
                batch = next(batches)
            except StopIteration:
                return
            except IndexError as error:
                if is_iterable(loader):
                    raise
                raise missing_sample(loader.dataset, error) from error
        yield batch


def _begun(loader: DataLoader[Any]) -> Iterator[Batch]:
    """A pass over the loader, whose processes leave Ctrl-C and hanging up to this one: it may need their batches."""
    given = loader.worker_init_fn
    if loader.num_workers:
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
    """Samples in a batch: the first dimension of its first tensor.

    Raises:
        DataError: the batch holds no tensor with a sample dimension.
    """
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return len(leaf)
    raise DataError(
        f"the DataLoader yields {type(batch).__name__} without tensors that have a sample dimension; "
        "let its collate_fn return tensors [batch, ...] in tuples, lists or dicts"
    )


def is_iterable(data: object) -> bool:
    """Whether the samples can only be reached one after another."""
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
    """The length of the loader or its sampler; None where it is unknown, or an iterable dataset's guess."""
    if is_iterable(loader):
        return None
    try:
        return len(part)
    except TypeError:
        return None
