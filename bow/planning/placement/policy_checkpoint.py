"""Keeps a training of a policy in a file, from which it goes on as if it had never been interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bow.errors import CheckpointError, disk_reason, reason
from bow.planning.placement.findings import Findings, Found
from bow.planning.placement.learning_settings import LearningSettings
from bow.planning.placement.policy import PlacementPolicy
from bow.planning.placement.updating import Updater

FORMAT = "bow placement policy"
VERSION = 1


class PolicyCheckpoint:
    """The file of one training; it is there whole or not at all.

    Args:
        path: of the file; its folder is created.
        policy: that is trained.
        settings: with which it learns.
        seed: of the training.
    """

    def __init__(self, path: Path, policy: PlacementPolicy, settings: LearningSettings, seed: int) -> None:
        self._path, self._policy = path, policy
        described = repr((policy.operations, policy.settings, settings, seed))
        self._training = hashlib.sha256(described.encode()).hexdigest()[:16]

    def save(self, updater: Updater, findings: Findings, controllers: dict[int, dict[str, Any]]) -> None:
        """Write the file anew, under a temporary name first."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "training": self._training,
            "policy": self._policy.state_dict(),
            "updater": updater.state(),
            "findings": asdict(findings),
            "controllers": controllers,
        }
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())  # a name must not point to what is not yet on the disk
            part.replace(self._path)
        except (OSError, RuntimeError) as error:  # torch's writer raises the latter where the disk is full
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            why = disk_reason(error)
            raise CheckpointError(f"{self._path} cannot be written ({why}); free space or use another file") from error

    def load(self, updater: Updater, findings: Findings) -> dict[int, dict[str, Any]]:
        """Go on from the file, where it is there."""
        if not self._path.exists():
            return {}
        content = self._read()
        if content.get("training") != self._training:
            raise CheckpointError(
                f"{self._path} is of a training with other operations, settings or seed; give the same or another file"
            )
        self._policy.load_state_dict(content["policy"])
        updater.load(content["updater"])
        kept = content["findings"]
        findings.samples, findings.failed = kept["samples"], kept["failed"]
        findings.bests = tuple(Found(**best) for best in kept["bests"])
        controllers: dict[int, dict[str, Any]] = content["controllers"]
        return controllers

    def _read(self) -> dict[str, Any]:
        try:
            with zipfile.ZipFile(self._path) as parts:
                if (part := parts.testzip()) is not None:  # torch does not look at checksums
                    raise ValueError(f"the checksum of {part} is wrong")
            content = torch.load(self._path, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, ValueError) as error:
            foreign = isinstance(error, pickle.UnpicklingError)  # torch would advise to trust the file
            why = "it holds other things than tensors and plain values" if foreign else reason(error)
            raise CheckpointError(f"{self._path} is damaged ({why}); delete it to begin anew") from error
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise CheckpointError(f"{self._path} is no checkpoint of a placement policy; give another file")
        return content
