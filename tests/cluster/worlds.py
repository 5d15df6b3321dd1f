"""Several processes for a test: this one is rank 0."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from bow.cluster import WorkerJob, World, join, start

T = TypeVar("T")


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """What is within takes minutes at most, and not until something gives up."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 600


CPU = torch.device("cpu")


def in_world(size: int, function: Callable[[World], T], **options: Any) -> list[T]:
    """What a function returns in each of several processes, by rank."""

    def elsewhere() -> None:
        with join(CPU, **options) as world:
            world.gather(function(world))

    with start(size, CPU, WorkerJob(elsewhere), **options) as world:
        results = world.gather(function(world))
    assert results is not None
    return results
