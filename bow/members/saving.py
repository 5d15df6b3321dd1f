"""Files of a sweep: a folder for each member, a table of members, checkpoints to resume from."""

import copy
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from bow.errors import BowError, CheckpointError, RunDirectoryError, disk_reason, reason, warn_user
from bow.files import save_text
from bow.members.config import SweepConfig
from bow.members.member import Member, Progress
from bow.observe import JsonLinesLogger, Logger, Record, RunDirectory, SafeLogger
from bow.observe.records import plain
from bow.replicas import prepare_template
from bow.training.checkpoint import delete_checkpoints_after, difference, open_checkpoint, save_checkpoint
from bow.training.evaluation import BestModel
from bow.training.result import save_central, save_whole

MEMBERS = "members"  # subfolder with the folders of members
TABLE = "members.json"  # file with a row for each member
DESCRIBED = ("model", "data", "loss", "step", "scheduler")  # code in a Python call, text on a command line
MOST_ELEMENTS = 2**16  # elements of a tensor that its digest covers
THREADS = 1  # threads of a member; fixed, because their number decides how sums are rounded
AT = ("round", "samples", "epoch", "rung", "state", "best")  # fields of `Progress` in checkpoints

_PARTS: dict[str, type | tuple[type, ...]] = {
    "members": list,
    "waiting": list,
    "round": int,
    "elapsed_s": (int, float),
    "variants": list,
    "engine": dict,
}


def folder_of(number: int, name: str) -> str:
    return f"{number:03d}_{re.sub(r'[^A-Za-z0-9._=-]+', '_', name)[:80]}"


@runtime_checkable
class GroupLogger(Logger, Protocol):
    """Protocol of loggers of `bow.sweep`, which create a logger for each member."""

    def for_member(self, name: str, group: str) -> Logger:
        """Return the logger of a member; `group` is the name of the sweep's run directory."""


class SweepDirectory(RunDirectory):
    """The run directory of a sweep."""

    def __init__(self, path: Path, config: SweepConfig) -> None:
        super().__init__(path)
        self._config = config
        self._records = SafeLogger(JsonLinesLogger(self.metrics_path))
        self._loggers = [each for each in config.train.run.loggers if isinstance(each, GroupLogger)]
        self.engine: dict[str, Any] = {}  # by kind of the training members, the state of the engine
        self._own: dict[int, tuple[list[SafeLogger], int]] = {}  # by member: loggers, number of records logged
        self._unwritten: set[str] = set()  # what a warning has told of
        self.place: Callable[[], Record] = dict  # of the loop: the time and the round of an event

    def save_member(self, member: Member) -> None:
        own = RunDirectory(member.run_dir)
        self.attempt(lambda: self._describe(member, own), "files of a member")
        if member.model is not None:
            save_central(member.model, own)
        if (best := member.best) is not None and best.model is not member.model:
            self.attempt(lambda: save_whole(best.model, own.best_path), f"best model of {member.name}")

    def _describe(self, member: Member, own: RunDirectory) -> None:
        try:
            own.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = disk_reason(error)
            raise RunDirectoryError(f"the folder {own.path} cannot be created ({why}); make it writable") from error
        own.best_path.unlink(missing_ok=True)
        job, described = self._config.jobs.get(member.name), {"member": member.name, "variant": member.variant.values}
        own.write_config(described if job is None else job.as_settings())
        lines = "".join(json.dumps(plain(record)) + "\n" for record in self._records_of(member))
        save_text("the records of a member", own.metrics_path, lines, RunDirectoryError)

    def attempt(self, write: Callable[[], object], what: str) -> None:
        """Write files of the sweep; on failure record it, and warn the first time."""
        try:
            write()
        except Exception as error:
            why = reason(error) if isinstance(error, BowError) else disk_reason(error)
            message = f"the {what} cannot be written ({why})"
            if what not in self._unwritten:
                warn_user(message)
            self._unwritten.add(what)
            self.log({"kind": "event", **self.place(), "event": "not written", "message": message})

    def log_member(self, member: Member, *, has_ended: bool = False) -> None:
        if not self._loggers:
            return
        loggers, told = self._own.get(member.number, ([], 0))
        if not told:
            loggers = [SafeLogger(each.for_member(member.name, self.path.name)) for each in self._loggers]
        records = self._records_of(member)[: None if has_ended else -1]
        for logger in loggers:
            for record in records[told:]:
                logger.log(record)
        self._own[member.number] = loggers, len(records)
        if has_ended:
            self._close(member.number)

    def _close(self, number: int) -> None:
        for logger in self._own.pop(number)[0]:
            logger.close()

    def _records_of(self, member: Member) -> list[Record]:
        last = member.history[-1] if member.history else {}
        start = {
            "kind": "start",
            "time_s": 0.0,
            "learners": self._config.train.num_learners,
            "engine": member.engine,
            **({} if self._config.has_learners else {"threads": THREADS}),
            "batch_size": self._config.batch_size_of(member.variant),
            "epochs": None if self._config.train.steps is not None else self._config.train.epochs,
            "steps": self._config.train.steps,
            **({} if member.model is None else {"model": type(member.model).__name__}),
            "settings": member.variant.values,
            "run_dir": str(member.run_dir),
        }
        end = {"seconds": last.get("time_s"), "round": last.get("round"), "samples": last.get("samples")}
        end |= {"best_round": None if member.best is None else member.best.round, "stopped": member.stopped}
        known = {name: value for name, value in end.items() if value is not None}
        during = sorted([*member.history, *member.events], key=itemgetter("time_s"))
        return [start, *during, {"kind": "end", **known, **member.metrics}]

    def log(self, record: Record) -> None:
        self._records.log(record)

    def close(self) -> None:
        for number in list(self._own):
            self._close(number)
        for logger in (self._records, *map(SafeLogger, self._loggers)):
            logger.close()

    def write_table(self, members: Sequence[Member]) -> None:
        rows = [
            {
                "name": member.name,
                "settings": plain(member.variant.values),
                "epochs": member.epochs,
                "stopped": member.stopped,
                "train_loss": member.history[-1]["train_loss"] if member.history else None,
                **plain(member.metrics),
                "folder": os.path.relpath(member.run_dir, self.path),
            }
            for member in members
        ]
        text = json.dumps(plain(rows), indent=1) + "\n"
        path = self.path / TABLE
        self.attempt(lambda: save_text("it", path, text, RunDirectoryError), "table of members")

    def save_checkpoint(
        self, number: int, waiting: Sequence[Progress], members: Sequence[Member], elapsed_s: float
    ) -> None:
        under_way = {each.member.number: each for each in waiting}
        states = []
        for member in members:
            progress = under_way.get(member.number)
            at = {} if progress is None else {name: getattr(progress, name) for name in AT}
            best = {} if member.best is None else {**vars(member.best), "model": None}  # the model is in its folder
            own = {
                "history": member.history,
                "events": member.events,
                "stopped": member.stopped,
                "engine": member.engine,
                "best": best,
            }
            states.append({"name": member.name, **own, "at": at})
        state = {
            "members": states,
            "waiting": [each.member.name for each in waiting],  # in the order in which they get rows
            "round": number,
            "elapsed_s": elapsed_s,
            "variants": self._kinds,
            "engine": self.engine,
        }
        self.attempt(lambda: save_checkpoint(self.checkpoints, number, state), "checkpoint")

    def load_checkpoint(self, resume: str | Path | None) -> dict[str, Any] | None:
        if (state := open_checkpoint(resume, self.path, _PARTS)) is None:
            return None
        if state["variants"] != self._kinds:
            raise CheckpointError(
                f"{self.checkpoints} is of a sweep {_difference(state['variants'], self._kinds)}; pass the same "
                "variants, data and settings in the same order, or name another run directory"
            )
        delete_checkpoints_after(self.checkpoints, state["round"])  # damaged ones
        self.engine = state["engine"]
        return state

    def load_models(self, member: Member, template: nn.Module, best: Mapping[str, Any]) -> None:
        """Load a member's models from its folder; `best` has the other fields of its `BestModel`."""
        own = RunDirectory(member.run_dir)
        member.model = _loaded(own.model_path, template)
        model = _loaded(own.best_path, template) or member.model
        if best and model is not None:
            member.best = BestModel(**{**best, "model": model})

    @functools.cached_property
    def _kinds(self) -> list[str]:
        train, first = self._config.train, self._config.variants[0]
        template = prepare_template(self._config.of(first).model, first.seed)
        common: dict[str, Any] = {
            "batch_size": train.batch_size,
            "learners": train.num_learners,
            "epochs": train.epochs,
            "steps": train.steps,
            "engine": self._config.engine_name,
            "compile": train.engine.compile,
            "precision": train.engine.precision,
            "clip_norm": train.clip_norm,
            "accumulate": train.engine.accumulate,
            "optimizer": plain(train.optimizer),
            "batches": self._config.batches,
            **{f"parameter {name}": tuple(p.shape) for name, p in template.named_parameters()},
            "memory_format": train.engine.memory_format,
            "variants": self._config.num_members,
            "stop": [text for text in map(repr, self._config.stop) if " at 0x" not in text],
            "target": train.validation.target,
            "metrics": [metric.name for metric in train.validation.metrics],
            "validation data": digest_of(train.validation.data),
            "seed": train.seed if self._config.batches == "shared" else None,
        }
        if train.source is not None:  # text from the command line can be compared
            common |= {name: train.source[name] for name in DESCRIBED}
        else:
            described = {name: plain(getattr(train, name)) for name in ("loss", "step", "scheduler")}
            common |= {name: value for name, value in described.items() if " at 0x" not in str(value)}
        common["data"] = digest_of(train.data)
        own = [
            {
                "name": variant.name,
                **variant.values,
                "training samples": digest_of(variant.train_on),
                "validation samples": digest_of(variant.validate_on),
            }
            for variant in self._config.variants
        ]
        return [json.dumps(plain(each), sort_keys=True) for each in (common, *own)]


def _difference(saved: Sequence[str], given: Sequence[str]) -> str:
    """Say how the first settings that differ do: those of all, such as the number of variants, or a variant's."""
    before, now = next((json.loads(a), json.loads(b)) for a, b in zip(saved, given, strict=False) if a != b)
    values = {name: [each.get(name, "not stated") for each in (before, now)] for name in {**before, **now}}
    differing = [name for name, (was, is_now) in values.items() if repr(was) != repr(is_now)]  # 1 and 1.0, too
    name = "name" if "name" in differing else min(differing)
    whose = f"whose variant {before['name']!r}" if "name" in before else "that"
    return f"{whose} {difference(name, *values[name])}"


def _loaded(path: Path, template: nn.Module) -> nn.Module | None:
    if not path.exists():
        return None
    model = copy.deepcopy(template)
    load_model(model, str(path))
    return model.eval()


def digest_of(data: Any) -> str | None:
    """Return a digest of tensors in memory over a sample of their elements; None for other data."""
    leaves = tree_leaves(data.tensors if type(data) is TensorDataset else data)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.layout == torch.strided for leaf in leaves):
        return None
    digest = hashlib.sha256()
    for leaf in leaves:
        digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
        some = leaf.detach().reshape(-1)[:: leaf.numel() // MOST_ELEMENTS + 1]
        digest.update(some.cpu().resolve_conj().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
