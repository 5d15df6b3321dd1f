"""The two stages: who trains what, in which order."""

import contextlib
import importlib.metadata
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from benchmarks.caches import empty_caches
from benchmarks.environment import inspect_environment
from benchmarks.peers.contestants import BOW, CONTESTANTS, LARGE_BATCH, PYTORCH
from benchmarks.peers.picture import draw
from benchmarks.peers.process import train_apart
from benchmarks.peers.report import finals_table, markdown
from benchmarks.peers.settings import Settings
from benchmarks.peers.sweep_rule import MARGIN, RULE, best, fastest, score, sweep
from benchmarks.peers.task import DATA, MODELS, MOMENTUM, Task
from benchmarks.peers.training import DIVERGED, FAILED, FINAL, REHEARSAL, SWEEP, Choice, Training
from benchmarks.peers.verdict import LEAST_SEEDS, LIMIT, decide
from benchmarks.results import Result, console, prepare_output, write_json, write_text
from bow.data import DataSplits
from bow.errors import SettingError

SWEEP_SEED = 0  # Of the sweep; those of the finals begin behind it, so that the luck of the sweep does not count

# A rehearsal is short, but has four evaluations, from the first to the last of which its throughput is measured
REHEARSED_EPOCHS = 0.1

REHEARSALS = 3  # With every number of threads, where there are several to choose from: a single one may be disturbed

# Settings that plain PyTorch and bow have in the finals: one seed of the sweep does not tell them well apart
FINALISTS = 2


@dataclass
class Program:
    """Both stages."""

    settings: Settings  # of the benchmark
    train: Callable[[Task], Training]  # carries a training out
    say: Callable[[str], object]  # is told every line of the protocol
    trainings: list[Training] = field(default_factory=list)  # all of them, in their order
    left_out: dict[str, str] = field(default_factory=dict)  # who did not take part, and why
    entries: dict[str, list[Choice]] = field(default_factory=dict)  # what everybody does in the finals, the best first
    _rehearsals: dict[tuple[str, int], Training] = field(default_factory=dict)

    def run(self) -> None:
        """Find everybody's best setting, and then let all of them train with other seeds."""
        for name in self._present():
            if found := self._find(name):
                self.entries[name] = found
        order = line_up(self.entries)
        for seed in range(1, 1 + self.settings.seeds):
            for choice in order if seed % 2 else reversed(order):
                self._train(choice, FINAL, seed, limit_s=self.settings.limit_s)

    def of(self, stage: str) -> list[Training]:
        """The trainings of a stage."""
        return [training for training in self.trainings if training.stage == stage]

    def _present(self) -> list[str]:
        absent = missing(self.settings)
        for name, why in absent.items():
            self._leave_out(name, why)
        return [name for name in CONTESTANTS if name in self.settings.contestants and name not in absent]

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        self.say(f"{name} is left out: {why}")

    def _find(self, name: str) -> list[Choice]:
        """What a contestant does in the finals; nothing where it is left out."""
        base = CONTESTANTS[name].base
        if base is None:
            found = self._sweep(name)
        elif name == LARGE_BATCH:
            found = [self._sweep_large(name, self._base(base))]
        else:
            setting = self._base(base)
            found = [self._rehearse(name, setting.batch_size, setting.lr)]
        if found[0].ending in (DIVERGED, FAILED):
            self._leave_out(name, f"{found[0].ending}{'' if found[0].why is None else f': {found[0].why}'}")
            return []
        return [training.choice for training in found]

    def _sweep(self, name: str) -> list[Training]:
        swept: list[Training] = []

        def train(batch_size: int, lr: float, limit_s: float) -> Training:
            swept.append(self._sweep_one(name, batch_size, lr, limit_s))
            return swept[-1]

        settings = self.settings
        sweep(sorted(settings.batch_sizes), sorted(settings.lrs), settings.limit_s, train)
        return best(swept, FINALISTS)

    def _sweep_large(self, name: str, base: Choice) -> Training:
        limit_s = self.settings.limit_s
        found = []
        for batch_size in self.settings.large_batch_sizes:
            found.append(self._sweep_one(name, batch_size, base.lr * batch_size / base.batch_size, limit_s))
            limit_s = min(limit_s, found[-1].time_s or limit_s)
        return min(found, key=score)

    def _base(self, name: str) -> Choice:
        """The setting that others go by; the middle of the grid where its contestant does not take part."""
        sizes, lrs = sorted(self.settings.batch_sizes), sorted(self.settings.lrs)
        middle = Choice(name, sizes[(len(sizes) - 1) // 2], lrs[(len(lrs) - 1) // 2], min(self.settings.threads))
        return self.entries[name][0] if name in self.entries else middle

    def _sweep_one(self, name: str, batch_size: int, lr: float, limit_s: float) -> Training:
        rehearsal = self._rehearse(name, batch_size, lr)
        if rehearsal.ending == FAILED:
            return rehearsal
        return self._train(replace(rehearsal.choice, lr=lr), SWEEP, SWEEP_SEED, limit_s=limit_s)

    def _rehearse(self, name: str, batch_size: int, lr: float) -> Training:
        """A rehearsal of a contestant with a batch size, and the number of threads with which it is fastest.

        All numbers of threads take turns, and do so again unless all have failed.
        """
        if (name, batch_size) not in self._rehearsals:
            settings, rule = self.settings, CONTESTANTS[name].threads
            threads = {"fastest": settings.threads, "one": (1,), "all": (max(settings.threads),)}[rule]
            choices = [Choice(name, batch_size, lr, count) for count in threads]
            rehearsals: list[Training] = []
            for _ in range(REHEARSALS if len(choices) > 1 else 1):
                rehearsals += [self._train(each, REHEARSAL, SWEEP_SEED, limit_s=settings.limit_s) for each in choices]
                if all(training.ending == FAILED for training in rehearsals):
                    break
            self._rehearsals[name, batch_size] = fastest(rehearsals)
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


def line_up(entries: Mapping[str, Sequence[Choice]]) -> list[Choice]:
    """All entries in one order: those of plain PyTorch and bow side by side, so that both meet the same machine."""
    plain, bow = entries.get(PYTORCH, ()), entries.get(BOW, ())
    others = [choice for name, own in entries.items() if name not in (PYTORCH, BOW) for choice in own]
    return [*plain[:1], *bow, *plain[1:], *others]


def missing(settings: Settings) -> dict[str, str]:
    """Who cannot take part, of those that are asked to, and why."""
    whys = {name: CONTESTANTS[name].missing(settings.device) for name in CONTESTANTS if name in settings.contestants}
    return {name: why for name, why in whys.items() if why is not None}


def run(settings: Settings, command: str) -> int:
    """Run both stages and write the results."""
    settings = settings.reduced()
    data = check(settings)
    prepare_output(settings.out)
    began = time.perf_counter()
    say = partial(console().print, highlight=False, markup=False, soft_wrap=True)
    with empty_caches() as caches:
        program = Program(settings, partial(train_apart, environment=caches), say)
        program.run()
    verdict = decide(program.of(FINAL))
    environment = inspect_environment()
    findings: dict[str, Any] = {
        "fixed": f"{MODELS[settings.model]}, SGD with momentum {MOMENTUM:g}, constant learning rate, float32",
        "epoch_samples": len(data.train[1]),
        "test_samples": len(data.validation[1]),
        "rehearsed_epochs": REHEARSED_EPOCHS,
        "rehearsals": REHEARSALS,
        "finalists": FINALISTS,
        "rule": RULE,
        "margin": MARGIN,
        "limit": LIMIT,
        "least_seeds": LEAST_SEEDS,
        "environments": {name: dict(contestant.environment) for name, contestant in CONTESTANTS.items()},
        "packages": package_versions(),
        "left_out": program.left_out,
        "verdict": verdict.as_dict(),
        "finals": {name: [asdict(choice) for choice in own] for name, own in program.entries.items()},
        "trainings": [training.as_dict() for training in program.trainings],
    }
    values = Result("peers", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    write_json(settings.out / "peers.json", values)
    write_text(settings.out / "peers.md", markdown(program.trainings, verdict, values, environment))
    draw(program.of(FINAL), settings.target, settings.out / "peers.png")
    finals_table(program.of(FINAL), settings.target).show(f"time to {settings.target:.1%}")
    say(str(verdict))
    say(f"written to {settings.out}")
    return 1 if verdict.is_met is False else 0


def check(settings: Settings) -> DataSplits:
    """Find out before the first training what none of them could do; returns the data."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SettingError("device=cuda needs a CUDA device, and torch sees none; use device=cpu")
    absent = missing(settings)
    if set(settings.contestants) <= set(absent):
        whys = "; ".join(f"{name}: {why}" for name, why in absent.items())
        raise SettingError(f"contestants must name at least one that can take part, got {whys or 'nothing'}")
    return DATA[settings.data](settings.root) if settings.root else DATA[settings.data]()


def package_versions() -> dict[str, str]:
    """The versions of the contestants' packages that are installed."""
    versions = {}
    for contestant in CONTESTANTS.values():
        if contestant.package is not None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[contestant.package] = importlib.metadata.version(contestant.package)
    return versions
