"""All synchronisers, for comparisons of engines and devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bow

SYNCHRONISERS: dict[str, Callable[[], Any]] = {
    "sma": lambda: bow.SMA(mu=0.5),
    "sma-every-2": lambda: bow.SMA(alpha=0.2, mu=0.9, every=2),
    "ssgd": bow.SSGD,
    "easgd": lambda: bow.EASGD(alpha=0.2),
    "local-sgd": lambda: bow.LocalSGD(every=3),
    "diloco": lambda: bow.DiLoCo(every=3),
    "asgd": bow.ASGD,
    "independent": bow.Independent,
}
