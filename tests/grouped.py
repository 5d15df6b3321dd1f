"""Flat settings for the sections of `bow.train` and `bow.Replicas`: tests vary one setting at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import bow

SECTIONS: dict[str, tuple[type, str, dict[str, str]]] = {
    "engine": (
        bow.Engine,
        "name",
        {name: name for name in ("compile", "capture", "dispatch", "offload", "accumulate", "precision", "schedule")},
    ),
    "devices": (bow.Devices, "count", {"bucket_mb": "bucket_mb"}),
    "validation": (
        bow.Validation,
        "data",
        {
            "metrics": "metrics",
            "evaluate_every": "every",
            "eval_batch_size": "batch_size",
            "target": "target",
            "buffers": "buffers",
            "ema": "ema",
        },
    ),
    "run": (
        bow.Run,
        "path",
        {
            "run_dir": "path",
            **{name: name for name in ("checkpoint_every", "resume", "on_interrupt", "loggers", "progress")},
        },
    ),
}
"""By section: its class, the field that may replace it, and its other settings by their names in tests."""


def grouped(**settings: Any) -> dict[str, Any]:
    """Return keywords of `bow.train` from settings: `grouped(progress=False)` is `{"run": bow.Run(progress=False)}`.

    `tuner` and `per_round` are objects and booleans; the engine `"graph+round"` is `graph` with capture `round`.
    """
    given = dict(settings)
    if given.get("engine") == "graph+round":
        given.update(engine="graph", capture="round")
    if (tuner := given.pop("tuner", None)) is not None:
        given["learners"] = dataclasses.replace(tuner, learners=given.get("learners", "auto"))
    if given.pop("per_round", False):
        given["scheduler"] = bow.PerRound(given["scheduler"])
    for section, (kind, first, names) in SECTIONS.items():
        fields = {names[name]: given.pop(name) for name in names if name in given}
        value = given.get(section)
        if not fields:
            continue
        if isinstance(value, kind):
            given[section] = dataclasses.replace(value, **fields)
        else:
            given[section] = kind(**({first: value} if section in given else {}), **fields)
    return given


def of_replicas(**settings: Any) -> dict[str, Any]:
    """The same for `bow.Replicas`, which has no validation, but its own setting for batch-norm statistics."""
    buffers = {"buffers": settings.pop("buffers")} if "buffers" in settings else {}
    return grouped(**settings) | buffers
