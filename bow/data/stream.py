"""The stream of batches for the learners, and the order of its samples."""

import abc
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bow.errors import DataError, SettingError
from bow.seeds import derive_seed


class SampleOrder:
    """The concatenation of one permutation of the samples per epoch."""

    def __init__(
        self,
        num_samples: int,
        seed: int,
        device: torch.device | str = "cpu",
        among: Int64[Tensor, " samples"] | None = None,
    ) -> None:
        self.num_samples = num_samples if among is None else len(among)
        self.seed = seed
        self._device = device
        self._among = among
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def indices(self, start: int, count: int) -> Int64[Tensor, " count"]:
        """Return the indices of `count` samples from position `start` of the stream; may span epochs."""
        epoch, offset = divmod(start, self.num_samples)
        if offset + count <= self.num_samples:
            return self._permutation_of(epoch)[offset : offset + count]
        first = self._permutation_of(epoch)[offset:]
        pieces = [first]
        missing = count - len(first)
        while missing > 0:
            epoch += 1
            pieces.append(self._permutation_of(epoch)[:missing])
            missing -= self.num_samples
        return torch.cat(pieces)

    def _permutation_of(self, epoch: int) -> Tensor:
        # Cached until another epoch is requested: rounds of tiny models last about 100 microseconds.
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            permutation = torch.randperm(self.num_samples, generator=generator)
            permutation = permutation if self._among is None else self._among[permutation]
            if torch.device(self._device).type == "cuda":
                permutation = permutation.pin_memory()  # the host does not wait for the copy
            self._permutation = permutation.to(self._device, non_blocking=True)
            self._epoch = epoch
        return self._permutation


Batch: TypeAlias = Any  # a pytree of tensors with the sample dimension first; with `loss=` a pair (inputs, targets)


def batch_length(batch: Batch) -> int:
    """Return the number of samples: the first dimension of a batch's first tensor; 1 if it has none."""
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()), 1)


class Deal(NamedTuple):
    """The batches of one round."""

    batches: Any  # a pytree of tensors `[learners, batch, ...]`, or a list by learner, None for one without a batch
    stacked: bool  # which of the two; with several devices, `batches` are those of one
    num_samples: int  # in the batches of all learners, other devices included
    epochs: int  # completed epochs after training on this deal


class BatchStream(abc.ABC):
    """Deals batches to learners, in an order that depends only on seed and epoch.

    The batches of a round go to the learners in order, so one learner sees the same stream that several share. Rounds
    cross epoch boundaries; only the last round of the stream may be short.
    """

    samples_per_epoch: int | None
    batch_size: int | None

    @property
    @abc.abstractmethod
    def epochs(self) -> int:
        """Completed epochs at this position."""

    @abc.abstractmethod
    def deal(self, learners: int, own: range | None = None) -> Deal | None:
        """Deal the next round; return None at the end of the stream.

        `own` is the range of learners whose batches are returned; None: all. The position advances for all learners.
        """

    @abc.abstractmethod
    def peek(self) -> Batch:
        """Return the next batch without consuming it."""

    @abc.abstractmethod
    def rounds_left(self, learners: int) -> int | None:
        """Return the number of rounds left with this many learners; None if endless or unknown."""

    def reside(self, device: torch.device, room_bytes: int) -> bool:
        """Move tensor samples to a device if they fit, and deal them as `Indexed`; return whether it does."""
        return False

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the exact position, as plain integers."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position: the stream continues as if it had not been interrupted."""


class IndexedStream(BatchStream):
    """A stream over samples with random access: batches as well as rounds cross epoch boundaries."""

    samples_per_epoch: int
    batch_size: int

    def __init__(self, order: SampleOrder, batch_size: int, epochs: int | None) -> None:
        self.samples_per_epoch = order.num_samples
        self.batch_size = batch_size
        self.order = order
        self._position = 0
        self._end: float = math.inf if epochs is None else epochs * order.num_samples

    @property
    def epochs(self) -> int:
        return self._position // self.samples_per_epoch

    @abc.abstractmethod
    def full_round(self, start: int, learners: int) -> tuple[Any, bool]:
        """Return full batches for all learners from a position, and whether they are stacked."""

    @abc.abstractmethod
    def batch(self, start: int, count: int) -> Batch:
        """Return one batch: the `count` samples from a position."""

    def deal(self, learners: int, own: range | None = None) -> Deal | None:
        own = range(learners) if own is None else own
        count = learners * self.batch_size
        left = self._end - self._position
        if left <= 0:
            return None
        if left >= count:
            batches, stacked = self.full_round(self._position + own.start * self.batch_size, len(own))
        else:
            count = int(left)
            batches, stacked = self._short_round(own), False
        self._position += count
        return Deal(batches, stacked, count, self.epochs)

    def peek(self) -> Batch:
        return self.batch(self._position, int(min(self.batch_size, self._end - self._position)))

    def full_batches_left(self) -> float:
        """Full batches left in the stream; infinite if it does not end."""
        left = self._end - self._position
        return left if math.isinf(left) else left // self.batch_size

    def full_batches_in_epoch(self) -> float:
        """Full batches left up to and including the one that completes an epoch."""
        left = self.samples_per_epoch - self._position % self.samples_per_epoch
        return min(math.ceil(left / self.batch_size), self.full_batches_left())

    def skip(self, batches: int) -> int:
        """Advance by full batches that were gathered elsewhere; return the number of completed epochs."""
        self._position += batches * self.batch_size
        return self._position // self.samples_per_epoch

    def rounds_left(self, learners: int) -> int | None:
        left = self._end - self._position
        return None if math.isinf(left) else max(0, math.ceil(left / (learners * self.batch_size)))

    def state_dict(self) -> dict[str, Any]:
        return {
            "position": self._position,
            "samples_per_epoch": self.samples_per_epoch,
            "seed": self.order.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_seed(state["seed"], self.order.seed)
        if state["samples_per_epoch"] != self.samples_per_epoch:
            raise DataError(
                f"the checkpoint was made with {state['samples_per_epoch']} training samples and the data "
                f"have {self.samples_per_epoch}; resume with the same data"
            )
        self._position = state["position"]

    def _short_round(self, own: range) -> list[Batch | None]:
        starts = [self._position + learner * self.batch_size for learner in own]
        lengths = [min(self.batch_size, int(self._end) - start) for start in starts]
        return [self.batch(*each) if each[1] > 0 else None for each in zip(starts, lengths, strict=True)]


def check_seed(saved: int, seed: int) -> None:
    if saved != seed:
        raise SettingError(f"the checkpoint was made with seed={saved}, got seed={seed}; resume with seed={saved}")
