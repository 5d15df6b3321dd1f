"""Checkpoints of a training: when they are due, atomic files with a checksum, and what is restored from them."""

import codecs
import contextlib
import copy
import hashlib
import math
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from bow.cluster import World
from bow.data import BatchStream
from bow.data.stream import TensorStream
from bow.errors import CheckpointError, ClusterError, DeviceMemoryError, SettingError, disk_reason, warn_user
from bow.observe.records import plain
from bow.training.batches import DataSource
from bow.training.checks import asks_for_rounds
from bow.training.config import TrainConfig
from bow.training.context import Learners, RunContext
from bow.training.replicas import Replicas
from bow.training.replicas_state import RESUME_REMEDY, part_of, refusing_damage
from bow.training.run_records import RunRecords

KEEP = 2  # number of checkpoints to keep; older ones are deleted
DIRECTORY = "checkpoints"
DIGESTS = ("data", "validation data", "training samples", "validation samples")  # settings compared by a digest

TRAILER = b"bow sha256 "  # appended with a checksum to torch's output, which torch.load ignores
_TRAILER_BYTES = len(TRAILER) + 64
_BLOCK_BYTES = 2**20
# What NumPy's arrays of numbers are unpickled by.
ARRAYS: list[Any] = [np.ndarray, np.dtype, np.empty(0).__reduce__()[0], codecs.encode, bytes]
ARRAYS += [type(np.dtype(code)) for code in "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]]
_NAME = re.compile(r"round_(\d+)\.pt")
_PARTS: dict[str, type | tuple[type, ...]] = {
    "replicas": dict,
    "stream": dict,
    "started_with": list,
    "settings": dict,
    "tuned": dict,
    "history": list,
    "learners": int,
    "by_device": list,
    "round": int,
    "samples": int,
    "epoch": int,
    "elapsed_s": (int, float),
    "step_values": dict,
    "epoch_steps": list,
    "evaluated": dict,
    "best": dict,
}  # required entries of a checkpoint


def save_checkpoint(directory: Path, round_index: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint atomically, and delete all but the newest `KEEP`."""
    path = directory / f"round_{round_index:08d}.pt"
    temporary = path.with_suffix(".tmp")
    try:
        directory.mkdir(exist_ok=True)
        with temporary.open("w+b") as file:
            torch.save(_without_numpy(state), file)
            file.seek(0)
            _check_readable(file)
            file.seek(0)
            checksum = _checksum(file)
            file.write(TRAILER + checksum)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(directory)
        for old in _checkpoints(directory)[:-KEEP]:
            old.unlink()
    except Exception as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError | RuntimeError):  # torch's writer raises RuntimeError on a full disk
            raise
        raise CheckpointError(
            f"{path} cannot be written ({disk_reason(error)}); free space or use another run directory"
        ) from error
    return path


def open_checkpoint(
    resume: str | Path | None, run_dir: str | Path | None, parts: Mapping[str, type | tuple[type, ...]] = _PARTS
) -> dict[str, Any] | None:
    """Load the checkpoint that `resume` refers to, or the previous one if damaged; None: start a new training."""
    found = candidate_checkpoints(resume, run_dir)
    for path in reversed(found):
        try:
            return load_checkpoint(path, parts)
        except CheckpointError as error:
            if path is found[0]:
                raise
            warn_user(f"{error}; using the previous checkpoint")
    return None


def candidate_checkpoints(resume: str | Path | None, run_dir: str | Path | None) -> list[Path]:
    """Return the checkpoints that `resume` may refer to, oldest first."""
    if resume is None:
        return []
    if resume == "auto":
        if run_dir is None:
            raise SettingError('resume="auto" looks for checkpoints in the run directory, got none; name it')
        return _checkpoints(Path(run_dir) / DIRECTORY)
    path = Path(resume)
    if path.is_file():
        return [path]
    found = _checkpoints(path / DIRECTORY) or _checkpoints(path)
    if not found:
        raise CheckpointError(f"resume={str(resume)!r} has no checkpoint; give a run directory or a checkpoint of one")
    return found


def load_checkpoint(path: Path, parts: Mapping[str, type | tuple[type, ...]] = _PARTS) -> dict[str, Any]:
    """Load a checkpoint and check its entries; only tensors and plain values are accepted."""
    try:
        if not _is_whole(path):
            raise ValueError("its checksum does not match")
        with torch.serialization.safe_globals(ARRAYS):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({disk_reason(error)}); resume from another one") from error
    except Exception as error:  # torch's message advises to trust the file
        why = "damaged, or not written by this version of bow"
        raise CheckpointError(f"{path} is not a readable checkpoint ({why}); {RESUME_REMEDY}") from error
    if not isinstance(state, dict) or not all(isinstance(state.get(part), kind) for part, kind in parts.items()):
        raise CheckpointError(
            f"{path} is not a checkpoint of this version of bow; resume from one that is, or start anew in another "
            "run directory"
        )
    return state


def _check_readable(file: BinaryIO) -> None:
    """Refuse a checkpoint that `load_checkpoint`, which accepts only tensors and plain values, would refuse later."""
    with torch.serialization.safe_globals(ARRAYS):
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    if foreign:
        raise _refused(", ".join(sorted(foreign)))


def _refused(what: str) -> SettingError:
    return SettingError(
        f"checkpoints hold tensors, arrays of numbers and plain values, got {what}; keep it out of the state of the "
        "scheduler, the optimizer and the records, and out of modules' extra state, or use checkpoint_every=None"
    )


def delete_checkpoints_after(directory: Path, round_index: int) -> None:
    """Delete the checkpoints of later rounds, which a training resumed from this round supersedes."""
    for path in _checkpoints(directory):
        try:
            if _round_of(path) > round_index:
                path.unlink()
        except OSError as error:
            raise CheckpointError(
                f"{path} is of a later round than the one resumed from and cannot be deleted "
                f"({disk_reason(error)}); delete it or use another run directory"
            ) from error


def delete_checkpoints(directory: Path, keep: int = 0) -> None:
    """Delete a finished training's checkpoints except the newest `keep`; file errors are ignored."""
    with contextlib.suppress(OSError):
        for path in _checkpoints(directory)[: -keep or None]:
            path.unlink()
        directory.rmdir()


def newest_round(directory: Path) -> int | None:
    found = _checkpoints(directory)
    return _round_of(found[-1]) if found else None


def run_of(checkpoint: Path) -> Path | None:
    return checkpoint.parent.parent if checkpoint.parent.name == DIRECTORY else None


def _sync_folder(folder: Path) -> None:
    """Flush a directory to disk, so that a rename survives a power cut; ignored where unsupported."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_whole(path: Path) -> bool:
    """Return whether there is a checksum at the end that matches."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - _TRAILER_BYTES))
        trailer = file.read()
        if not trailer.startswith(TRAILER):
            return False
        file.seek(0)
        return _checksum(file, length - _TRAILER_BYTES) == trailer.removeprefix(TRAILER)


def _checksum(file: BinaryIO, length: int | None = None) -> bytes:
    """Return the hexadecimal SHA-256 of the next `length` bytes; None: of all remaining."""
    digest = hashlib.sha256()
    left = math.inf if length is None else length
    while left > 0 and (block := file.read(int(min(left, _BLOCK_BYTES)))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest().encode()


def _checkpoints(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), key=_round_of)


def _round_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("round_"))


def _without_numpy(value: Any) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    if isinstance(value, np.ndarray) and (value.dtype.kind not in "biufc" or not value.dtype.isnative):
        raise _refused(f"an array of {value.dtype}")
    if isinstance(value, dict):
        entries = {_without_numpy(key): _without_numpy(entry) for key, entry in value.items()}
        same = copy.copy(value)  # keeps the type, such as a scheduler's Counter
        same.clear()
        same.update(entries)
        return same
    return type(value)(map(_without_numpy, value)) if type(value) in (list, tuple) else value


SHARE = 0.01  # largest part of the training time for automatic checkpoints
LEAST_S = 60.0  # shortest interval between two of them; shorter trainings write none
LEAST_OF_SEVERAL_S = 5.0  # on several devices, one of which may fail when others have already begun the next round
BYTES_PER_S = 200e6  # assumed write speed for the first checkpoint; later ones are timed


class CheckpointTimer:
    """Schedule of automatic checkpoints."""

    def __init__(self, num_bytes: float, now_s: float, *, is_alone: bool = True) -> None:
        self._least_s = LEAST_S if is_alone else LEAST_OF_SEVERAL_S
        self._due_s = now_s + max(self._least_s, num_bytes / BYTES_PER_S / SHARE)

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def wrote(self, began_s: float, ended_s: float) -> None:
        self._due_s = ended_s + max(self._least_s, (ended_s - began_s) / SHARE)


class RunCheckpoints:
    """Writes the checkpoints of a training."""

    def __init__(self, context: RunContext, records: RunRecords, state: Callable[[], dict[str, Any] | None]) -> None:
        self._context = context
        self._position = context.position
        self._records = records
        self._state = state  # of the whole training; a collective call that returns it at rank 0
        copies = context.replicas.group.num_all + 1  # times 3 below: with optimizer state such as Adam's
        size, is_alone = 3 * 4 * context.replicas.num_parameters * copies, context.world.is_one
        self._timer = CheckpointTimer(size, time.perf_counter(), is_alone=is_alone)

    @property
    def is_due(self) -> bool:
        return self._context.config.run.checkpoint_every == "auto" and self._timer.is_due(time.perf_counter())

    def after_round(self, before: int) -> None:
        every = self._context.config.run.checkpoint_every
        if isinstance(every, int) and self._position.round // every > before // every:
            self.pause_and_write()

    def pause_and_write(self) -> None:
        self._position.meter.pause()
        self.write()
        self._position.meter.resume()

    def write(self, stream: dict[str, Any] | None = None) -> None:
        began = time.perf_counter()
        if (state := self._state()) is not None:
            state["stream"] = stream or state["stream"]
            folder, index = self._context.directory.checkpoints, self._position.round
            self._records.attempt(lambda: save_checkpoint(folder, index, state), "checkpoint", "training continues")
        self._timer.wrote(began, time.perf_counter())

    def interrupted(self, number: int) -> None:
        self.write()
        is_returned = self._context.config.run.on_interrupt == "return"  # otherwise the exception has the way on
        resume_hint = f"; {self.resume_hint}" if is_returned else ""
        self._records.event("interrupted", f"{signal.Signals(number).name}: the training ends{resume_hint}")

    def write_pre_failure(self, is_between: bool, stream: dict[str, Any] | None) -> None:
        """Write a checkpoint with this state of the stream, if all devices are between the same two rounds."""
        replicas, world, position = self._context.replicas, self._context.world, self._position
        asked_for = self._context.config.run.checkpoint_every is not None
        has_run = position.meter.samples > 0 and position.round == replicas.rounds
        can = asked_for and has_run and is_between and (world.is_one or isinstance(replicas, Replicas))
        if world.reunite(position.round if can else None):
            with contextlib.suppress(ClusterError):
                self.write(stream)

    def is_undone(self, error: Exception) -> bool:
        """Whether rounds that failed have left the learners unchanged."""
        replicas = self._context.replicas
        if isinstance(error, DeviceMemoryError) or not isinstance(replicas, Replicas):
            return isinstance(error, DeviceMemoryError)
        # Streams issue rounds ahead.
        return replicas.engine.startswith(("eager", "graph")) and replicas.streams is None and replicas.loop.is_undone

    @property
    def resume_hint(self) -> str:
        directory = self._context.directory
        kept, path = newest_round(directory.checkpoints), str(directory.path)
        if kept is None:
            return "there is no checkpoint to resume from"
        how = f"bow.train(..., run=bow.Run({path!r}, resume='auto'))"
        if self._context.config.source is not None:
            config = shlex.quote(str(directory.config_path))
            how = f"bow train --config {config} {shlex.quote(f'run={path}')} run.resume=auto"
        return f"there is a checkpoint of round {kept}; resume with {how}"


def learners_to_resume(state: Mapping[str, Any], asked_for: int | None, world: World) -> int:
    """Return this device's number of learners: as requested, as before, or an even share if devices differ."""
    by_device = state["by_device"]
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
        kinds = [state["scheduler_type"], scheduler_type(scheduler)]
        if None not in kinds and kinds[0] != kinds[1]:
            raise SettingError(
                f"the checkpoint was made with scheduler {kinds[0]}, got {kinds[1]}; resume with the same one"
            )
        replicas.load_training_state(learned, replicas.learners)
        _warn_of_other_settings(state["started_with"], optimizer_given)
        position = {name: state["stream"][name] for name in stream.state_dict()}
    stream.load_state_dict(position)  # may read the user's data, whose errors are no damage
    with refusing_damage():
        _warn_of_another_trajectory(state["settings"], given, None not in kinds)
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


def difference(name: str, saved: Any, given: Any) -> str:
    """Say of what is resumed how a setting differs."""
    if name in DIGESTS:
        return f"is given other {name} than it was started with"
    return f"was started with {name}={saved!r}, got {name}={given!r}"


def _warn_of_another_trajectory(saved: Mapping[str, Any], given: Mapping[str, Any], keeps_scheduler: bool) -> None:
    for name in sorted(saved.keys() & given.keys()):
        if saved[name] == given[name]:
            continue
        of_scheduler = name in ("scheduler", "rounds of the scheduler") and keeps_scheduler
        its = "that of its checkpoint" if of_scheduler else f"the new one{'s' * (name == 'data')}"
        said = difference(name, saved[name], given[name])
        warn_user(f"the training to be resumed {said}; it continues with {its}")


def _warn_of_other_settings(saved: list[dict[str, Any]], given: list[dict[str, Any]]) -> None:
    for old, new in zip(saved, given, strict=False):
        names = [name for name in old if name in new and old[name] != new[name]]
        if names:
            was, now = (", ".join(f"{name}={values[name]}" for name in names) for values in (old, new))
            warn_user(
                f"the training to be resumed was started with {was}, got {now}; it continues with the optimizer "
                "settings of its checkpoint, start a new training to change them",
            )
