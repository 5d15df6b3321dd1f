"""Renamed settings: former keywords are rejected with a message that gives the new name."""

import functools
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from bow.errors import SettingError

P = ParamSpec("P")
R = TypeVar("R")

MOVED: Mapping[str, tuple[str, str]] = {  # former name: (new name in Python, on the command line)
    "lr_scheduler": ("scheduler=...", "scheduler=..."),
    "lr_interval": ("scheduler=bow.PerRound(...)", "scheduler={_target_: bow.PerRound, factory: {_target_: ...}}"),
    "tuner": ("learners=bow.Tuner(...)", "tuner.NAME=..."),
    "dispatch": ("engine=bow.Engine(..., dispatch=...)", "engine.dispatch=..."),
    "compile": ("engine=bow.Engine(..., compile=...)", "engine.compile=..."),
    "precision": ("engine=bow.Engine(..., precision=...)", "engine.precision=..."),
    "memory": ("engine=bow.Engine(..., offload=True)", "engine.offload=true"),
    "schedule": ('engine=bow.Engine("graph", schedule=...)', "engine.schedule=..."),
    "strategy": (
        'engine=bow.Engine("graph", schedule=...), or found.train(data, ...) of what bow.plan returns',
        "engine.schedule=..., or bow plan train FILE",
    ),
    "strategy_check": ("found.train(data, check=...)", "bow plan train FILE check=..."),
    "eval_batch_size": ("validation=bow.Validation(..., batch_size=...)", "validation.batch_size=..."),
    "evaluate_every": ("validation=bow.Validation(..., every=...)", "validation.every=..."),
    "metrics": ("validation=bow.Validation(..., metrics=...)", "validation.metrics=..."),
    "target": ("validation=bow.Validation(..., target=...)", "validation.target=..."),
    "buffers": ("validation=bow.Validation(..., buffers=...)", "validation.buffers=..."),
    "loggers": ("run=bow.Run(..., loggers=...)", "run.loggers=..."),
    "run_dir": ("run=...", "run.path=..."),
    "checkpoint_every": ("run=bow.Run(..., checkpoint_every=...)", "run.checkpoint_every=..."),
    "resume": ("run=bow.Run(..., resume=...)", "run.resume=..."),
    "on_interrupt": ("run=bow.Run(..., on_interrupt=...)", "run.on_interrupt=..."),
    "progress": ("run=bow.Run(..., progress=...)", "run.progress=..."),
    "bucket_mb": ("devices=bow.Devices(..., bucket_mb=...)", "devices.bucket_mb=..."),
}


def refuses_moved(caller: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to reject renamed keywords with their new names."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = function.__kwdefaults__ or {}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            name = next((name for name in kwargs if name in MOVED and name not in known), None)
            if name is not None:
                raise SettingError(f"{caller} has no {name}=; it is {MOVED[name][0]} now")
            return function(*args, **kwargs)

        return checked

    return decorate
