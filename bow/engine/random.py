"""Random numbers of learning tasks: derived from the seed, and none of the user's own are used up."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def task_random(device: torch.device) -> Iterator[torch.Generator]:
    """Lend the default generator of a device to learning tasks and put its state back afterwards."""
    on_gpu = device.type == "cuda"
    generator = torch.cuda.default_generators[device.index or 0] if on_gpu else torch.default_generator
    state = generator.get_state()
    try:
        yield generator
    finally:
        generator.set_state(state)
