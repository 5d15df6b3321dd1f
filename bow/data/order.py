"""The order in which samples are seen."""

import torch
from jaxtyping import Int64
from torch import Tensor

from bow.seeds import derive_seed


class SampleOrder:
    """The concatenation, over epochs, of that epoch's permutation of the samples.

    Epoch e is `randperm(num_samples)` from a generator seeded with `derive_seed(seed, e)`: any position can
    be computed directly, and neither learners nor batch size have a say in it.

    Args:
        num_samples: samples in an epoch, at least 1.
        seed: any integer.
        device: where the indices are wanted.
    """

    def __init__(self, num_samples: int, seed: int, device: torch.device | str = "cpu") -> None:
        self.num_samples = num_samples
        self.seed = seed
        self._device = device
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def indices(self, start: int, count: int) -> Int64[Tensor, " count"]:
        """Indices of the `count` samples from position `start` of the stream, which may span epochs."""
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
        # Kept until another epoch is asked for: rounds of tiny models last about 100 microseconds.
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            permutation = torch.randperm(self.num_samples, generator=generator)
            if torch.device(self._device).type == "cuda":
                permutation = permutation.pin_memory()  # the host does not wait for the copy
            self._permutation = permutation.to(self._device, non_blocking=True)
            self._epoch = epoch
        return self._permutation
