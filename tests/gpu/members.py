"""Members: each becomes what it becomes alone, and one that diverges ends alone."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch

import bow
from benchmarks.gpu.machine import Machine
from tests.gpu.case import Case
from tests.gpu.trainings import few, subject

MODELS = ("mlp", "resnet8", "dropout")
ENGINES = ("eager", "graph", "streams")
ADAMW = functools.partial(torch.optim.AdamW, lr=0.003)


def cases(fake: bool) -> list[Case]:
    every = [(model, engine) for model in MODELS for engine in ENGINES]
    return [
        *(Case(f"members become what they become alone: {m}, {e}", functools.partial(_alone, m, e)) for m, e in every),
        Case("a member that diverges ends alone", _diverges),
    ]


def _common(machine: Machine, model: str) -> dict[str, Any]:
    chosen = subject(machine, model)
    return {
        "model": chosen.build,
        "data": chosen.batch(0, torch.float32, few(machine, 10, 5) * chosen.batch_size),
        "loss": chosen.loss,
        "batch_size": chosen.batch_size,
        "epochs": 2,
        "devices": machine.device,
    }


def _run(path: Path) -> bow.Run:
    return bow.Run(path, progress=False)


def _alone(model: str, engine: str, machine: Machine) -> None:
    common: dict[str, Any] = {**_common(machine, model), "engine": engine}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variants = [bow.Variant(seed=0), bow.Variant(seed=1, settings={"lr": 0.001}), bow.Variant(seed=2)]
        result = bow.sweep(**common, optimizer=ADAMW, variants=variants, at_once=2, run=_run(folder / "sweep"))
        assert result.engine == engine, f"ran as {result.engine}"
        for number, member in enumerate(result.members):
            own = member.variant.make_optimizer(ADAMW)
            run = _run(folder / str(number))
            other = bow.train(**common, learners=1, optimizer=own, seed=member.variant.seed, run=run)
            assert member.model is not None
            for tensor, value in other.model.state_dict().items():
                torch.testing.assert_close(member.model.state_dict()[tensor], value, msg=f"{member.name}: {tensor}")


def _diverges(machine: Machine) -> None:
    with tempfile.TemporaryDirectory() as name:
        variants = bow.grid(seed=range(2), lr=[0.003, 1e30])
        common = _common(machine, "mlp")
        result = bow.sweep(**common, optimizer=ADAMW, variants=variants, engine="graph", run=_run(Path(name) / "sweep"))
        assert [member.stopped for member in result] == [None, "diverged"] * 2
