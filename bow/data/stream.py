"""The streams of batches for the learners: the order of samples, and samples that are tensors in memory."""

import abc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils._pytree import TreeSpec, register_pytree_node, tree_flatten, tree_leaves, tree_map, tree_unflatten

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

    def on(self, device: torch.device) -> "SampleOrder":
        return SampleOrder(self.num_samples, self.seed, device, self._among)

    def indices(self, start: int, count: int) -> Int64[Tensor, " count"]:
        """Return the indices of `count` samples from position `start` of the stream; may span epochs."""
        epoch, offset = divmod(start, self.num_samples)
        if offset + count <= self.num_samples:
            return self._permutation_of(epoch)[offset : offset + count]
        pieces = [self._permutation_of(epoch)[offset:]]
        missing = count - len(pieces[0])
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


@dataclass(frozen=True)
class Stacked:
    """Batches of all learners as one pytree of tensors `[learners, batch, ...]`."""

    value: Any


Batches: TypeAlias = Stacked | Sequence[Batch | None]  # one batch per learner; None where a learner sits out


def batch_of(batches: Batches, learner: int) -> Batch | None:
    if isinstance(batches, Stacked):
        return tree_map(lambda t: t[learner], batches.value)
    return batches[learner]


class Deal(NamedTuple):
    """The batches of one round."""

    batches: Batches  # with several devices, those of one
    sizes: Sequence[int]  # samples of each batch; 0 for a learner without one
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

    @property
    def last_batch(self) -> int | None:
        """Samples of the last batch; None for an endless stream."""
        return None if math.isinf(self._end) else int(self._end) % self.batch_size or self.batch_size

    @abc.abstractmethod
    def full_round(self, start: int, learners: int) -> Batches:
        """Return full batches for all learners from a position."""

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
            batches = self.full_round(self._position + own.start * self.batch_size, len(own))
            sizes = [self.batch_size] * len(own)
        else:
            count = int(left)
            starts = [self._position + learner * self.batch_size for learner in own]
            sizes = [max(0, min(self.batch_size, int(self._end) - start)) for start in starts]
            batches = [self.batch(*each) if each[1] else None for each in zip(starts, sizes, strict=True)]
        self._position += count
        return Deal(batches, sizes, count, self.epochs)

    def peek(self) -> Batch:
        return self.batch(self._position, int(min(self.batch_size, self._end - self._position)))

    def full_batches_in_epoch(self) -> float:
        """Full batches left up to and including the one that completes an epoch."""
        in_epoch = self.samples_per_epoch - self._position % self.samples_per_epoch
        left = self._end - self._position
        return min(math.ceil(in_epoch / self.batch_size), left if math.isinf(left) else left // self.batch_size)

    def skip(self, batches: int) -> int:
        """Advance by full batches that were gathered elsewhere; return the number of completed epochs."""
        self._position += batches * self.batch_size
        return self.epochs

    def step_back(self, samples: int) -> None:
        self._position -= samples

    def rounds_left(self, learners: int) -> int | None:
        left = self._end - self._position
        return None if math.isinf(left) else max(0, math.ceil(left / (learners * self.batch_size)))

    def state_dict(self) -> dict[str, Any]:
        own = {"position": self._position, "samples_per_epoch": self.samples_per_epoch}
        return {**own, "seed": self.order.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_seed(state["seed"], self.order.seed)
        if state["samples_per_epoch"] != self.samples_per_epoch:
            raise DataError(
                f"the checkpoint was made with {state['samples_per_epoch']} training samples and the data "
                f"have {self.samples_per_epoch}; resume with the same data"
            )
        self._position = state["position"]


def check_seed(saved: int, seed: int) -> None:
    if saved != seed:
        raise SettingError(f"the checkpoint was made with seed={saved}, got seed={seed}; resume with seed={saved}")


class TensorSamples:
    """A pytree of tensors whose first dimension is the sample dimension."""

    def __init__(self, data: Any) -> None:
        leaves, self._spec = tree_flatten(data)
        self._is_tuple = type(data) is tuple and all(isinstance(each, Tensor) for each in data)
        _check_leaves(leaves)
        self.leaves: list[Tensor] = [leaf.detach() for leaf in leaves]  # in pytree order
        self.device: torch.device = leaves[0].device

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __repr__(self) -> str:  # deterministic: a checkpoint names what was captured of it
        return f"TensorSamples({', '.join(f'{leaf.dtype} {list(leaf.shape)}' for leaf in self.leaves)})"

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves)

    def to(self, device: torch.device) -> "TensorSamples":
        return TensorSamples(self.map(lambda leaf: leaf.to(device)))

    def map(self, function: Callable[[Tensor], Tensor]) -> Any:
        return self._tree([function(leaf) for leaf in self.leaves])

    def gather(self, indices: Tensor) -> Batch:
        numbers, shape = indices.reshape(-1), indices.shape
        return self.map(lambda leaf: leaf.index_select(0, numbers).view(*shape, *leaf.shape[1:]))

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Iterate over all samples in order, as copies: a model may modify its input in place."""
        for pieces in zip(*(torch.split(leaf, batch_size) for leaf in self.leaves), strict=True):
            yield self._tree([piece.clone() for piece in pieces])

    def _tree(self, leaves: list[Tensor]) -> Batch:
        spec: TreeSpec = self._spec
        return tuple(leaves) if self._is_tuple else tree_unflatten(leaves, spec)  # slower than a gather


def _check_leaves(leaves: list[Tensor]) -> None:
    if any(leaf.dim() == 0 for leaf in leaves):
        raise DataError("every tensor of the data needs a sample dimension, got one with shape []; add the dimension")
    other = next((leaf.layout for leaf in leaves if leaf.layout != torch.strided), None)
    if other is not None:
        raise DataError(
            f"the tensors of the data must be dense, got one of layout {other}; convert it with .to_dense()"
        )
    lengths = [len(leaf) for leaf in leaves]
    if len(set(lengths)) > 1:
        raise DataError(
            f"the tensors of the data must have equal first dimensions, got {lengths}; give one entry per sample"
        )
    if lengths[0] == 0:
        raise DataError("the data have 0 samples; give at least one")
    devices = sorted({str(leaf.device) for leaf in leaves})
    if len(devices) > 1:
        raise DataError(f"the tensors of the data must be on one device, got {', '.join(devices)}; move them together")


# `gather(source, indices, out)`: `out[i] = source[indices[i]]`
Gather: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]


class Indexed:
    """A batch still to be gathered: a pytree with the index tensor as its leaf. Captured graphs start with it."""

    def __init__(self, samples: TensorSamples, indices: Int64[Tensor, "*shape"]) -> None:
        self.samples = samples
        self.indices = indices

    def gather(self, gather: Gather) -> Any:
        numbers = self.indices.reshape(-1)

        def take(source: Tensor) -> Tensor:
            out = torch.empty(len(numbers), *source.shape[1:], dtype=source.dtype, device=source.device)
            gather(source, numbers, out)
            return out.view(*self.indices.shape, *source.shape[1:])

        return self.samples.map(take)

    def gathered(self) -> Batch:
        return self.samples.gather(self.indices)


register_pytree_node(
    Indexed,
    lambda batch: ([batch.indices], batch.samples),
    lambda leaves, samples: Indexed(samples, *leaves),
    serialized_type_name="bow.data.Indexed",
)


class TensorStream(IndexedStream):
    """A stream over tensors in memory; full rounds are stacked, with one `index_select` per tensor."""

    def __init__(self, samples: TensorSamples, batch_size: int, epochs: int | None, seed: int) -> None:
        super().__init__(SampleOrder(len(samples), seed, samples.device), batch_size, epochs)
        self.samples = samples
        self.resides = False  # samples are on a device, and batches are dealt as indices

    def among(self, indices: Int64[Tensor, " some"], epochs: int | None) -> "TensorStream":
        some = TensorStream(self.samples, self.batch_size, None, self.order.seed)
        order = SampleOrder(len(self.samples), self.order.seed, self.samples.device, indices.cpu())
        IndexedStream.__init__(some, order, self.batch_size, epochs)
        return some

    def coming(self, batches: int) -> Int64[Tensor, " samples"]:
        return self.order.indices(self._position, batches * self.batch_size)

    def reside(self, device: torch.device, room_bytes: int) -> bool:
        if self.samples.device != device:
            if self.samples.nbytes > room_bytes:
                return False
            self.samples = self.samples.to(device)
            self.order = self.order.on(device)
        self.resides = True
        return True

    def full_round(self, start: int, learners: int) -> Batches:
        indices, shape = self.order.indices(start, learners * self.batch_size), (learners, self.batch_size)
        batches = Indexed(self.samples, indices.view(shape))
        return Stacked(batches if self.resides else batches.gathered())

    def batch(self, start: int, count: int) -> Batch:
        indices = self.order.indices(start, count)
        return Indexed(self.samples, indices) if self.resides else self.samples.gather(indices)
