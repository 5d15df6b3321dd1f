"""The two stages, and the order of their trainings; every training runs in its own process."""

import contextlib
import importlib.metadata
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from benchmarks.harness import CaseError, Host, in_concert
from benchmarks.peers.contestants import BOW, CONTESTANTS, LARGE_BATCH, PYTORCH
from benchmarks.peers.referee import Referee
from benchmarks.peers.sweep_rule import best, fastest, score, sweep
from benchmarks.peers.task import Job, Task
from benchmarks.peers.training import DIVERGED, FAILED, FINAL, REHEARSAL, SWEEP, Choice, Training
from bow.errors import DivergenceError

if TYPE_CHECKING:
    from benchmarks.peers import Config

PATIENCE_S = 600.0  # for everything but training: start, compilation, evaluation; then the process counts as hanging

SWEEP_SEED = 0  # of the sweep; the finals use later seeds, so that the luck of the sweep does not count

# A rehearsal is short, but has four evaluations; its throughput is measured from the first to the last
REHEARSED_EPOCHS = 0.1

REHEARSALS = 3  # with every number of threads, if there are several: a single one may be disturbed

# Number of settings of plain PyTorch and bow in the finals: one seed of the sweep does not separate them reliably
FINALISTS = 2


@dataclass
class Program:
    """Both stages."""

    config: "Config"  # of the benchmark
    train: Callable[[Task], Training]  # runs a training
    say: Callable[[str], object]  # prints a line of progress
    trainings: list[Training] = field(default_factory=list)  # in order
    left_out: dict[str, str] = field(default_factory=dict)  # missing contestants, and why
    entries: dict[str, list[Choice]] = field(default_factory=dict)  # settings for the finals, the best first
    _rehearsals: dict[tuple[str, int], Training] = field(default_factory=dict)

    def run(self) -> None:
        """Find the best setting of each contestant, and then train them all with other seeds."""
        for name in self._present():
            if found := self._find(name):
                self.entries[name] = found
        order = line_up(self.entries)
        for seed in range(1, 1 + self.config.seeds):
            for choice in order if seed % 2 else reversed(order):
                self._train(choice, FINAL, seed, limit_s=self.config.limit_s)

    def of(self, stage: str) -> list[Training]:
        return [training for training in self.trainings if training.stage == stage]

    def _present(self) -> list[str]:
        absent = missing(self.config)
        for name, why in absent.items():
            self._leave_out(name, why)
        return [name for name in CONTESTANTS if name in self.config.contestants and name not in absent]

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        self.say(f"{name} is left out: {why}")

    def _find(self, name: str) -> list[Choice]:
        """Return a contestant's settings for the finals; empty if it is left out."""
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

        config = self.config
        sweep(sorted(config.batch_sizes), sorted(config.lrs), config.limit_s, train)
        return best(swept, FINALISTS)

    def _sweep_large(self, name: str, base: Choice) -> Training:
        limit_s = self.config.limit_s
        found = []
        for batch_size in self.config.large_batch_sizes:
            found.append(self._sweep_one(name, batch_size, base.lr * batch_size / base.batch_size, limit_s))
            limit_s = min(limit_s, found[-1].time_s or limit_s)
        return min(found, key=score)

    def _base(self, name: str) -> Choice:
        """Return the setting that others use; the middle of the grid if its contestant is missing."""
        sizes, lrs = sorted(self.config.batch_sizes), sorted(self.config.lrs)
        middle = Choice(name, sizes[(len(sizes) - 1) // 2], lrs[(len(lrs) - 1) // 2], min(self.config.threads))
        return self.entries[name][0] if name in self.entries else middle

    def _sweep_one(self, name: str, batch_size: int, lr: float, limit_s: float) -> Training:
        rehearsal = self._rehearse(name, batch_size, lr)
        if rehearsal.ending == FAILED:
            return rehearsal
        return self._train(replace(rehearsal.choice, lr=lr), SWEEP, SWEEP_SEED, limit_s=limit_s)

    def _rehearse(self, name: str, batch_size: int, lr: float) -> Training:
        """Rehearse a contestant with a batch size; returns the rehearsal with the fastest number of threads.

        All numbers of threads take turns, repeatedly unless all have failed.
        """
        if (name, batch_size) not in self._rehearsals:
            config, rule = self.config, CONTESTANTS[name].threads
            threads = {"fastest": config.threads, "one": (1,), "all": (max(config.threads),)}[rule]
            choices = [Choice(name, batch_size, lr, count) for count in threads]
            rehearsals: list[Training] = []
            for _ in range(REHEARSALS if len(choices) > 1 else 1):
                rehearsals += [self._train(each, REHEARSAL, SWEEP_SEED, limit_s=config.limit_s) for each in choices]
                if all(training.ending == FAILED for training in rehearsals):
                    break
            self._rehearsals[name, batch_size] = fastest(rehearsals)
        return self._rehearsals[name, batch_size]

    def _train(self, choice: Choice, stage: str, seed: int, limit_s: float) -> Training:
        config, rehearses = self.config, stage == REHEARSAL
        task = Task(
            choice,
            seed=seed,
            stage=stage,
            model=config.model,
            data=config.data,
            root=config.root,
            device=config.device,
            target=math.inf if rehearses else config.target,
            epochs=config.epochs,
            until=REHEARSED_EPOCHS if rehearses else config.epochs,
            limit_s=limit_s,
            evaluate_every=REHEARSED_EPOCHS / 4 if rehearses else config.evaluate_every,
        )
        training = self.train(task)
        self.trainings.append(training)
        self.say(training.summary(config.target))
        return training


def line_up(entries: Mapping[str, Sequence[Choice]]) -> list[Choice]:
    """Order all entries: plain PyTorch and bow are adjacent, so that both run under the same conditions."""
    plain, bow = entries.get(PYTORCH, ()), entries.get(BOW, ())
    others = [choice for name, own in entries.items() if name not in (PYTORCH, BOW) for choice in own]
    return [*plain[:1], *bow, *plain[1:], *others]


def missing(config: "Config") -> dict[str, str]:
    """Return the requested contestants that cannot take part, and why."""
    whys = {name: CONTESTANTS[name].missing(config.device) for name in CONTESTANTS if name in config.contestants}
    return {name: why for name, why in whys.items() if why is not None}


def package_versions() -> dict[str, str]:
    """Return the versions of the contestants' packages that are installed."""
    versions = {}
    for contestant in CONTESTANTS.values():
        if contestant.package is not None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[contestant.package] = importlib.metadata.version(contestant.package)
    return versions


def train_apart(task: Task, environment: Mapping[str, str] | None = None) -> Training:
    """Train in a separate process, or in several; if one fails or hangs, the training failed."""
    count, port = CONTESTANTS[task.choice.contestant].processes, _free_port()
    with contextlib.ExitStack() as stack:
        try:
            variables = {**(environment or {}), **environment_of(task.choice)}
            hosts = [
                stack.enter_context(contextlib.closing(Host({**variables, **_together(rank, count, port)})))
                for rank in range(count)
            ]
            found: Training = in_concert(hosts, train, task, limit_s=PATIENCE_S + 2 * task.limit_s)
        except CaseError as error:
            return Training(task.choice, task.seed, task.stage, FAILED, why=str(error), limit_s=task.limit_s)
        return found


def train(task: Task, rank: int = 0) -> Training:
    """Train in this process; the clock starts after the data are read and the contestant's modules imported."""
    torch.set_num_threads(task.choice.threads)
    data = task.load()
    run = CONTESTANTS[task.choice.contestant].load()
    samples = len(data.train[1])
    referee = Referee(data.validation, task.evaluate_every * samples, task.target, task.until * samples, task.limit_s)
    referee.start()
    try:
        ran_as = run(Job(task, data, referee, rank))
    except DivergenceError:
        ran_as, referee.ending = None, DIVERGED
    ending = referee.ending or FAILED
    why = "ended by itself" if referee.ending is None and rank == 0 else None
    return Training(task.choice, task.seed, task.stage, ending, tuple(referee.looks), ran_as, why, task.limit_s)


def environment_of(choice: Choice) -> dict[str, str]:
    """Return the additional environment variables of a contestant's process."""
    return {**CONTESTANTS[choice.contestant].environment, "OMP_NUM_THREADS": str(choice.threads)}


def _together(rank: int, count: int, port: int) -> dict[str, str]:
    """Variables of the rendezvous, for several processes."""
    if count == 1:
        return {}
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
