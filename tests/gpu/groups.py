"""All tests on a device, by group: each runs in a process of its own."""

from __future__ import annotations

import importlib

from tests.gpu.case import Case

GROUPS = (
    "kernels",
    "agreement",
    "randomness",
    "changes",
    "isolation",
    "memory",
    "members",
    "agreement_more",
    "devices",
)
FIRST = 24  # of the cases of agreement: every engine with every model, once


def cases(group: str, fake: bool) -> list[Case]:
    """The tests of a group."""
    every: list[Case] = importlib.import_module(f"tests.gpu.{group.removesuffix('_more')}").cases(fake)
    if group.startswith("agreement"):
        every = every[:FIRST] if group == "agreement" else every[FIRST:]
    return [case for case in every if not fake or case.needs_gpu is None]


def every_case(fake: bool) -> list[Case]:
    """The tests of all groups."""
    return [case for group in GROUPS for case in cases(group, fake)]
