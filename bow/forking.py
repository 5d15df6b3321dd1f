"""Refuse to train in a process forked after torch computed, since its threads are missing there."""

import functools
import os

import torch

from bow.errors import SettingError

_is_stranded = False


def begin_to_compute(what: str) -> None:
    """Check that this process may compute on tensors, and watch forks from now on; call before computing."""
    if _is_stranded:
        raise SettingError(
            f"{what} would hang in this process: it was forked from one in which torch has computed, and lacks its "
            'threads; fork before the first training, or start processes with multiprocessing.get_context("spawn")'
        )
    if torch.get_default_device().type == "meta":
        raise SettingError(
            f"{what} needs tensors with values, and those of torch's default device, meta, have none; "
            'call torch.set_default_device("cpu")'
        )
    _watch_forks()


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_look)


def _look() -> None:
    """Mark a forked child if torch computes with several threads: its OpenMP pool is missing."""
    global _is_stranded
    _is_stranded = _is_stranded or torch.get_num_threads() > 1
