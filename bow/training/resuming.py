"""Restore learners, data stream and scheduler from a checkpoint."""

import hashlib
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from bow.cluster import World
from bow.data import BatchStream
from bow.data.tensors import TensorStream
from bow.errors import SettingError
from bow.observe.records import plain
from bow.training.checks import asks_for_rounds
from bow.training.config import TrainConfig
from bow.training.context import Learners
from bow.training.data_source import DataSource
from bow.training.replicas_state import part_of, refusing_damage


def learners_to_resume(state: Mapping[str, Any], asked_for: int | None, world: World) -> int:
    """Return this device's number of learners: as requested, as before, or an even share if devices differ."""
    by_device = state.get("by_device", [state["learners"]])
    if asked_for is not None and (asked_for != state["learners"] or len(by_device) != world.size):
        return asked_for
    return part_of(by_device, world)


def trajectory(config: TrainConfig, opened: DataSource, rounds: int | None) -> dict[str, Any]:
    """Return the settings that affect the weights and are compared nowhere else, as plain values."""
    compared = {
        "loss": config.loss,
        "step": config.step,
        "sync": config.sync,
        "scheduler": config.scheduler_factory,
        "scheduler stepped per": "round" if config.is_per_round else "epoch",
        "engine.precision": config.engine.precision,
        "clip_norm": config.clip_norm,
        "validation.buffers": config.validation.buffers,
        "validation.ema": config.validation.ema,
        "engine.accumulate": config.engine.accumulate,
        "on_nan": config.on_nan,
        "engine.dispatch": config.engine.dispatch,
    }
    values = {name: plain(value) for name, value in compared.items()} | {"batch_size": opened.stream.batch_size}
    if asks_for_rounds(config.scheduler_factory):
        values["rounds of the scheduler"] = rounds
    if isinstance(opened.stream, TensorStream):  # other data may be random
        dense = [leaf[0].cpu() for leaf in tree_leaves(opened.example) if leaf.layout == torch.strided]
        sample = b"".join(leaf.resolve_conj().reshape(-1).view(torch.uint8).numpy().tobytes() for leaf in dense)
        values["data"] = hashlib.sha256(sample).hexdigest()[:8]
    return {name: value for name, value in values.items() if " at 0x" not in str(value)}


def restore(
    state: Mapping[str, Any],
    learned: Mapping[str, Any] | None,
    replicas: Learners,
    stream: BatchStream,
    scheduler: LRScheduler | None,
    given: Mapping[str, Any],
) -> None:
    optimizer_given = optimizer_settings(replicas.optimizer)
    with refusing_damage():
        kinds = [state.get("scheduler_type"), scheduler_type(scheduler)]
        if None not in kinds and kinds[0] != kinds[1]:
            raise SettingError(
                f"the checkpoint was made with scheduler {kinds[0]}, got {kinds[1]}; resume with the same one"
            )
        replicas.load_training_state(learned, replicas.learners)
        _warn_of_other_settings(state["started_with"], optimizer_given)
        position = {name: state["stream"][name] for name in stream.state_dict()}
    stream.load_state_dict(position)  # may read the user's data, whose errors are no damage
    with refusing_damage():
        _warn_of_another_trajectory(state.get("settings", {}), given, None not in kinds)
        if scheduler is not None and state["scheduler"] is not None:
            scheduler.load_state_dict(state["scheduler"])


def optimizer_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the plain hyper-parameters of every group, such as `{"lr": 0.1, "momentum": 0.9}`."""
    settings = []
    for group in optimizer.param_groups:
        values = {k: v.item() if isinstance(v, Tensor) and v.numel() == 1 else v for k, v in group.items()}
        settings.append({k: v for k, v in values.items() if isinstance(v, (int, float, str, tuple))})
    return settings


def scheduler_type(scheduler: LRScheduler | None) -> str | None:
    return None if scheduler is None else type(scheduler).__name__


def _warn_of_another_trajectory(saved: Mapping[str, Any], given: Mapping[str, Any], keeps_scheduler: bool) -> None:
    for name in sorted(saved.keys() & given.keys()):
        if saved[name] == given[name]:
            continue
        if name == "data":
            said = "is given other data than it was started with; it continues with the new ones"
        else:
            of_scheduler = name in ("scheduler", "rounds of the scheduler") and keeps_scheduler
            its = "that of its checkpoint" if of_scheduler else "the new one"
            said = f"was started with {name}={saved[name]!r}, got {name}={given[name]!r}; it continues with {its}"
        warnings.warn(f"the training to be resumed {said}", stacklevel=4)


def _warn_of_other_settings(saved: list[dict[str, Any]], given: list[dict[str, Any]]) -> None:
    for old, new in zip(saved, given, strict=False):
        names = [name for name in old if name in new and old[name] != new[name]]
        if names:
            was, now = (", ".join(f"{name}={values[name]}" for name in names) for values in (old, new))
            warnings.warn(
                f"the training to be resumed was started with {was}, got {now}; it continues with the optimizer "
                "settings of its checkpoint, start a new training to change them",
                stacklevel=4,
            )
