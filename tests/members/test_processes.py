"""Members in two processes that take parts of a sweep from one queue, one of which is killed: as they become alone."""

import functools
import importlib.machinery
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from torch.nn import functional as F

import bow
from bow.members import Member, folds
from tests.forked import FORKED
from tests.members.test_equality import ADAMW, DATA, FLAT, LABELS, SGD, alone, assert_same, mlp

WORKER = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
import cloudpickle
path = Path(sys.argv[1])
function, given = cloudpickle.loads(path.read_bytes())
part = path.with_suffix(".part")
part.write_bytes(cloudpickle.dumps(function(*given)))
part.rename(path.with_suffix(".result"))
"""


@dataclass(eq=False)
class Task:
    path: Path
    process: Any = None

    @property
    def result(self) -> Path:
        return self.path.with_suffix(".result")


@dataclass
class TwoProcesses:
    """Stands in for Ray: runs each task in a process, two at a time, and again if the process was killed."""

    folder: Path
    tasks: list[Task] = field(default_factory=list)
    num_killed: int = 0

    def submit(self, function: Callable[..., Any], *given: Any) -> Task:
        self.tasks.append(Task(self.folder / f"task_{len(self.tasks)}"))
        self.tasks[-1].path.write_bytes(cloudpickle.dumps((function, given)))
        return self.tasks[-1]

    def wait(self, tasks: Sequence[Task], timeout: float) -> tuple[list[Task], list[Task]]:
        paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
        for task in self.tasks:
            if task.process is not None and task.process.poll() is not None:
                assert task.result.exists() or task.process.returncode == -signal.SIGKILL
                self.num_killed += not task.result.exists()
                task.process = None
        idle = 2 - sum(task.process is not None for task in self.tasks)
        for task in [each for each in tasks if each.process is None and not each.result.exists()][:idle]:
            task.process = subprocess.Popen([*FORKED, "-c", WORKER.format(paths=paths), str(task.path)])
        time.sleep(min(timeout, 0.02))
        done = [task for task in tasks if task.process is None and task.result.exists()]
        return done, [task for task in tasks if task not in done]

    def module(self) -> ModuleType:
        made: Any = ModuleType("ray")
        made.__spec__ = importlib.machinery.ModuleSpec("ray", None)
        made.is_initialized, made.put, made.wait = lambda: True, lambda value: value, self.wait
        made.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}] * 2
        made.remote = lambda **_: lambda function: SimpleNamespace(remote=functools.partial(self.submit, function))
        made.get = lambda task: cloudpickle.loads(task.result.read_bytes())
        return made


@dataclass
class Killing:
    """Notes who has ended an epoch, and kills the process of member 2 after its second epoch, once."""

    seen: Path

    def why_over(self, member: Member) -> None:
        with self.seen.open("a") as file:
            file.write(f"{member.name}\n")
        if member.name == "2" and self.epochs_of("2") == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def epochs_of(self, name: str) -> int:
        return self.seen.read_text().splitlines().count(name)


SETTINGS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "sgd": (SGD, [{"lr": 0.05}, {"lr": 0.01, "momentum": 0.0}, {"weight_decay": 0.1}]),
    "adamw": (ADAMW, [{"lr": 0.003}, {"lr": 0.01, "betas": (0.8, 0.9)}, {"weight_decay": 0.1}]),
}
CASES = [
    pytest.param(engine, optimizer, marks=() if (engine, optimizer) == ("graph", "adamw") else pytest.mark.nightly)
    for engine in ("eager", "graph")
    for optimizer in SETTINGS
]


@pytest.mark.parametrize(("engine", "optimizer"), CASES)
def test_a_kill_of_one_of_two_processes_changes_nothing(
    engine: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, settings = SETTINGS[optimizer]
    processes, rule = TwoProcesses(tmp_path), Killing(tmp_path / "seen")
    monkeypatch.setitem(sys.modules, "ray", processes.module())
    variants = [
        bow.Variant(name=str(3 * fold + n), seed=n, settings=own, train_on=train, validate_on=test)
        for fold, (train, test) in enumerate(folds(150, 2))
        for n, own in enumerate(settings)
    ]
    given: dict[str, Any] = {"optimizer": factory, "epochs": 4, "batch_size": 16, "engine": engine}
    run = bow.Run(tmp_path / "sweep", checkpoint_every=3, progress=False)
    result = bow.sweep(
        mlp, DATA, F.cross_entropy, variants=variants, run=run, cluster="ray", at_once=2, stop=rule, **given
    )
    assert result.engine == engine
    assert processes.num_killed == 1
    assert rule.epochs_of("2") == 5  # its second epoch twice: it went on from a checkpoint
    assert [rule.epochs_of(str(n)) for n in (0, 1, 4, 5)] == [4] * 4
    for member in result.members:
        train, test = member.variant.train_on, member.variant.validate_on
        held_out = bow.Validation((FLAT[test], LABELS[test]))
        data = (FLAT[train], LABELS[train])
        assert_same(member, alone(tmp_path / member.name, mlp, data, member.variant, validation=held_out, **given))
        assert (member.run_dir / "model.safetensors").exists()
