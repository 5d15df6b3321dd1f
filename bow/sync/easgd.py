"""Elastic averaging SGD, synchronous."""

from typing import TypeGuard

from bow.sync.base import Synchroniser
from bow.sync.sma import SMA


class EASGD(SMA):
    """Elastic averaging: `SMA` without central momentum and without restarts.

    Args:
        alpha: how strongly learners and z are pulled together; `None` is 1/k.
        every: rounds between two synchronisation tasks.

    Raises:
        SettingError: as for `SMA`; the limit is `alpha < 2 / (1 + k)`.

    Example:
        >>> EASGD(every=4)
        EASGD(every=4, alpha=None)

    References:
        Zhang, Choromanska, LeCun, Deep learning with Elastic Averaging SGD, 2015.
    """

    def __init__(self, alpha: float | None = None, every: int = 1) -> None:
        super().__init__(alpha=alpha, mu=0.0, every=every, restart=None)

    def __repr__(self) -> str:
        return f"EASGD(every={self.every!r}, alpha={self.alpha!r})"


def is_plain_sma(sync: Synchroniser) -> TypeGuard[SMA]:
    """Return whether a synchroniser's arithmetic is that of `SMA`; subclasses may differ."""
    return type(sync) in (SMA, EASGD)
