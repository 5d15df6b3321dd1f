"""Several processes for a test: this one is rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from bow.cluster import WorkerJob, World, join, start

T = TypeVar("T")

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
