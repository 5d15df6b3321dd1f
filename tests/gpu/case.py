"""A test on a device: run by pytest, and by `make gpu` where there is no pytest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu.machine import Machine


class Skipped(Exception):
    """This cannot be tested here; the message says why."""


@dataclass(frozen=True)
class Case:
    """One test.

    Attributes:
        name: unique among all of them.
        run: raises if something is wrong.
        needs_gpu: why there is nothing to see on the fake device; None: it runs there as well, in tiny form.
    """

    name: str
    run: Callable[[Machine], None]
    needs_gpu: str | None = None

    def __str__(self) -> str:
        return self.name
