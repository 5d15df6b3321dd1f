"""Random numbers that are kept apart from the rest of the program."""

import contextlib
from collections.abc import Iterator

import torch


class PrivateRandom:
    """A state of torch's CPU random numbers that is in force only inside `active()`.

    Samplers and augmentations draw from torch's global generator. Under this state they neither see what
    the rest of the program drew nor disturb it, so that shuffling is the same whatever the model draws.
    """

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Put this state in force; where it ends, the next `active()` goes on."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(outside)
