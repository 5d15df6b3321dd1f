"""A setting that is added and forgotten in a key is found: a cached choice, or a resumed training, would ignore it."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from bow.cluster.config import Devices
from bow.engines.config import Engine
from bow.members.saving import SweepDirectory
from bow.training.checkpoint import trajectory
from bow.training.config import TrainConfig
from bow.training.tuning import describe

pytestmark = pytest.mark.quick

SETTINGS = {each.name for section in (TrainConfig, Engine, Devices) for each in fields(section)}
PARTS = {
    "partition",
    "check_partition",
    "source",
    "devices",
    "count",
    "bucket_mb",
    "stop",
    "callbacks",
    "run",
    "validation",
}
"""How a training runs, is watched or was asked for; what of these matters, keys name in their own words."""

NOT_NEEDED: dict[Callable[..., Any], set[str]] = {
    # A tuner's choice: seed and learning rates change no speed; batches tell of data and batch size, samples of length.
    describe: PARTS
    | {"scheduler", "on_nan", "seed", "data", "step", "batch_size", "epochs", "steps", "name", "capture"},
    # A checkpoint has model (with its memory format), optimizer, learners, seed and position; engines agree; length
    # may change.
    trajectory: PARTS - {"validation"}
    | {"model", "data", "optimizer", "learners", "seed", "epochs", "steps"}
    | {"name", "compile", "capture", "offload", "schedule", "memory_format"},
    # Members have one learner, no synchroniser and seeds of their own; loss, step and scheduler are there by name, and
    # engines agree.
    SweepDirectory._kinds.func: PARTS
    | {"model", "loss", "step", "scheduler", "learners", "sync", "on_nan"}
    | {"engine", "name", "compile", "capture", "dispatch", "offload", "schedule"},
}


def named(function: Callable[..., Any]) -> set[str]:
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    read = {node.attr.removesuffix("_factory") for node in nodes if isinstance(node, ast.Attribute)}
    return read | {node.id.removeprefix("_") for node in nodes if isinstance(node, ast.Name)}


@pytest.mark.parametrize("key", NOT_NEEDED, ids=lambda key: key.__name__)
def test_every_setting_is_in_a_key_or_known_not_to_matter(key: Callable[..., Any]) -> None:
    forgotten = SETTINGS - named(key) - NOT_NEEDED[key]
    assert not forgotten, (
        f"{key.__name__} has not {sorted(forgotten)}: add them there, or to NOT_NEEDED with the reason"
    )
    assert NOT_NEEDED[key] <= SETTINGS
