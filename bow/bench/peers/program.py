"""The two stages: who trains what, in which order."""

import contextlib
import importlib.metadata
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from bow.bench.environment import inspect_environment
from bow.bench.peers.contestants import BOW, CONTESTANTS, GOODPUT, LARGE_BATCH, PYTORCH
from bow.bench.peers.picture import draw
from bow.bench.peers.process import train_apart
from bow.bench.peers.report import finals_table, markdown
from bow.bench.peers.settings import Settings
from bow.bench.peers.sweep_rule import RULE, score, sweep
from bow.bench.peers.task import DATA, MODELS, MOMENTUM, Task
from bow.bench.peers.training import DIVERGED, FAILED, FINAL, REHEARSAL, SWEEP, Choice, Training
from bow.bench.peers.verdict import decide
from bow.bench.results import Result, console, prepare_output, write_json, write_text
from bow.data import DataSplits
from bow.errors import SettingError

SWEEP_SEED = 0
"""Of the sweep; those of the finals begin behind it, so that the luck of the sweep does not count."""

REHEARSED_EPOCHS = 0.2
"""A rehearsal is short, but has four evaluations, from the first to the last of which its throughput is measured."""


@dataclass
class Program:
    """Both stages.

    Args:
        settings: of the benchmark.
        train: carries a training out.
        say: is told every line of the protocol.

    Attributes:
        trainings: all of them, in their order.
        left_out: who did not take part, and why.
        best: what everybody does in the finals.
    """

    settings: Settings
    train: Callable[[Task], Training]
    say: Callable[[str], object]
    trainings: list[Training] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    best: dict[str, Choice] = field(default_factory=dict)
    _rehearsals: dict[tuple[str, int], Training] = field(default_factory=dict)

    def run(self) -> None:
        """Find everybody's best setting, and then let all of them train with other seeds."""
        for name in self._present():
            if (choice := self._find(name)) is not None:
                self.best[name] = choice
        for seed in range(1, 1 + self.settings.seeds):
            order = list(self.best.values())
            for choice in order if seed % 2 else reversed(order):
                self._train(choice, FINAL, seed, limit_s=self.settings.limit_s)

    def of(self, stage: str) -> list[Training]:
        """The trainings of a stage."""
        return [training for training in self.trainings if training.stage == stage]

    def _present(self) -> list[str]:
        present = []
        for name, contestant in CONTESTANTS.items():
            if name in self.settings.contestants:
                why = contestant.missing(self.settings.device)
                if why is None:
                    present.append(name)
                else:
                    self._leave_out(name, why)
        return present

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        self.say(f"{name} is left out: {why}")

    def _find(self, name: str) -> Choice | None:
        """What a contestant does in the finals; None where it is left out."""
        if name == LARGE_BATCH:
            found = self._sweep_large(name)
        elif name in (PYTORCH, BOW):
            found = self._sweep(name)
        else:
            base = self._base(BOW if name == GOODPUT else PYTORCH)
            found = self._rehearse(name, base.batch_size, base.lr)
        if found.ending in (DIVERGED, FAILED):
            self._leave_out(name, f"{found.ending}{'' if found.why is None else f': {found.why}'}")
            return None
        return found.choice

    def _sweep(self, name: str) -> Training:
        def train(batch_size: int, lr: float, limit_s: float) -> Training:
            return self._sweep_one(name, batch_size, lr, limit_s)

        settings = self.settings
        return sweep(sorted(settings.batch_sizes), sorted(settings.lrs), settings.limit_s, train)

    def _sweep_large(self, name: str) -> Training:
        base, limit_s = self._base(PYTORCH), self.settings.limit_s
        found = []
        for batch_size in self.settings.large_batch_sizes:
            found.append(self._sweep_one(name, batch_size, base.lr * batch_size / base.batch_size, limit_s))
            limit_s = min(limit_s, found[-1].time_s or limit_s)
        return min(found, key=score)

    def _base(self, name: str) -> Choice:
        """The setting that others go by; the middle of the grid where its contestant does not take part."""
        sizes, lrs = sorted(self.settings.batch_sizes), sorted(self.settings.lrs)
        middle = Choice(name, sizes[(len(sizes) - 1) // 2], lrs[(len(lrs) - 1) // 2], min(self.settings.threads))
        return self.best.get(name, middle)

    def _sweep_one(self, name: str, batch_size: int, lr: float, limit_s: float) -> Training:
        rehearsal = self._rehearse(name, batch_size, lr)
        if rehearsal.ending == FAILED:
            return rehearsal
        return self._train(replace(rehearsal.choice, lr=lr), SWEEP, SWEEP_SEED, limit_s=limit_s)

    def _rehearse(self, name: str, batch_size: int, lr: float) -> Training:
        """The fastest rehearsal of a contestant with a batch size, over the numbers of threads that it may have."""
        if (name, batch_size) not in self._rehearsals:
            settings, rule = self.settings, CONTESTANTS[name].threads
            threads = {"fastest": settings.threads, "one": (1,), "all": (max(settings.threads),)}[rule]
            choices = [Choice(name, batch_size, lr, count) for count in threads]
            rehearsals = [self._train(choice, REHEARSAL, SWEEP_SEED, limit_s=settings.limit_s) for choice in choices]
            self._rehearsals[name, batch_size] = max(rehearsals, key=lambda training: training.throughput)
        return self._rehearsals[name, batch_size]

    def _train(self, choice: Choice, stage: str, seed: int, limit_s: float) -> Training:
        settings, rehearses = self.settings, stage == REHEARSAL
        task = Task(
            choice,
            seed=seed,
            stage=stage,
            model=settings.model,
            data=settings.data,
            root=settings.root,
            device=settings.device,
            target=math.inf if rehearses else settings.target,
            epochs=settings.epochs,
            until=REHEARSED_EPOCHS if rehearses else settings.epochs,
            limit_s=limit_s,
            evaluate_every=REHEARSED_EPOCHS / 4 if rehearses else settings.evaluate_every,
        )
        training = self.train(task)
        self.trainings.append(training)
        self.say(training.summary(settings.target))
        return training


def run(settings: Settings, command: str) -> int:
    """Run both stages and write the results."""
    settings = settings.reduced()
    prepare_output(settings.out)
    data = check(settings)
    began = time.perf_counter()
    say = partial(console().print, highlight=False, markup=False, soft_wrap=True)
    program = Program(settings, train_apart, say)
    program.run()
    verdict = decide(program.of(FINAL))
    environment = inspect_environment()
    findings: dict[str, Any] = {
        "fixed": f"{MODELS[settings.model]}, SGD with momentum {MOMENTUM:g}, constant learning rate, float32",
        "epoch_samples": len(data.train[1]),
        "test_samples": len(data.validation[1]),
        "rehearsed_epochs": REHEARSED_EPOCHS,
        "rule": RULE,
        "packages": package_versions(),
        "left_out": program.left_out,
        "verdict": verdict.as_dict(),
        "finals": {name: asdict(choice) for name, choice in program.best.items()},
        "trainings": [training.as_dict() for training in program.trainings],
    }
    values = Result("peers", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    write_json(settings.out / "peers.json", values)
    write_text(settings.out / "peers.md", markdown(program.trainings, verdict, values, environment))
    draw(program.of(FINAL), settings.target, settings.out / "peers.png")
    finals_table(program.of(FINAL), settings.target).show(f"time to {settings.target:.1%}")
    console().print(str(verdict), highlight=False)
    return 1 if verdict.is_met is False else 0


def check(settings: Settings) -> DataSplits:
    """Find out before the first training what none of them could do; returns the data.

    Raises:
        SettingError: there is no such device, or nothing is left to run.
        DataError: the data are not there.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SettingError("device=cuda needs a CUDA device, and torch sees none; use device=cpu")
    return DATA[settings.data](settings.root) if settings.root else DATA[settings.data]()


def package_versions() -> dict[str, str]:
    """The versions of the contestants' packages that are installed."""
    versions = {}
    for contestant in CONTESTANTS.values():
        if contestant.package is not None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[contestant.package] = importlib.metadata.version(contestant.package)
    return versions
