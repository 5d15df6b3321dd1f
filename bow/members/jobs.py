"""Run calls of `bow.train` that differ only in seed, optimizer, scheduler or batch size as members of one sweep."""

import copy
import dataclasses
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy
import torch
from torch import Tensor

from bow.cluster import is_member
from bow.data.opening import allows_one_pass
from bow.errors import DivergenceError, RunDirectoryError
from bow.members.checks import state_of_step, why_no_member
from bow.members.config import SweepConfig
from bow.members.group import is_same
from bow.members.member import Member, Variant, name_of
from bow.members.result import Sweep
from bow.members.sweep import run_sweep
from bow.observe import RunDirectory
from bow.replicas import prepare_template
from bow.sync import SMA, Independent
from bow.training.checks import choose_devices
from bow.training.config import Run, TrainConfig
from bow.training.result import Result
from bow.training.train import TRAIN_OVERRIDE, run_training

# Settings that may differ between members, or that the sweep provides; all others must be equal.
APART = {"model", "optimizer", "scheduler", "batch_size", "learners", "sync", "run", "callbacks", "seed", "source"}
Outcome = Result | Exception  # the result of a training, or the exception it raised


def why_alone(configs: Sequence[TrainConfig], goes_on: bool = False) -> str | None:
    paths = [Path(config.run.path) for config in configs if config.run.path is not None]
    if len(set(paths)) < len(paths):
        return "they have the same run directory"
    if not goes_on and any(RunDirectory(path).holds_run for path in paths):
        return "their run directories contain runs"
    for config in configs:
        if (why := _why_no_member(config)) is not None:
            return why
    first, numbers = configs[0], {num_learners(config) for config in configs}
    if len(numbers) > 1:
        return "they differ in learners"
    if len({config.run.checkpoint_every for config in configs}) > 1:
        return "they differ in run.checkpoint_every"
    apart = APART if numbers == {1} else APART - {"sync"}
    for name in (each.name for each in dataclasses.fields(first) if each.name not in apart):
        if not all(is_same(getattr(first, name), getattr(other, name)) for other in configs[1:]):
            return f"they differ in {name}"
    if not all(config.model is first.model for config in configs):
        # Compare everything except the values of parameters and buffers.
        metas = (copy.deepcopy(prepare_template(each.model, each.seed)).to("meta") for each in configs)
        if len(set(map(cloudpickle.dumps, metas))) > 1:
            return "their models differ"
    if len(configs) > 1 and numbers == {1} and allows_one_pass(first.data):
        return "their loader allows one pass at a time"
    if len(configs) > 1 and (state := state_of_step(first)) is not None:
        return f"their step or loss changes {state} in Python"
    return None


def as_members(configs: Sequence[TrainConfig], run: Run, go_on: str) -> SweepConfig:
    """Return the sweep with a member for each training; `go_on` is its message after an interruption."""
    first = configs[0]
    schedulers = [config.scheduler for config in configs]
    shared = all(is_same(each, schedulers[0]) for each in schedulers)
    is_one_optimizer = all(is_same(config.optimizer, first.optimizer) for config in configs)
    sizes = {config.batch_size for config in configs}
    size = sizes.pop() if len(sizes) == 1 else None
    variants = [
        Variant(
            seed=config.seed,
            optimizer=None if is_one_optimizer else config.optimizer,
            scheduler=None if shared else config.scheduler,
            batch_size=config.batch_size if size is None else None,
        )
        for config in configs
    ]
    names = [name_of(variant, variants) for variant in variants]
    named = [
        dataclasses.replace(variant, name=name if name not in names[:number] else f"{name} ({number})")
        for number, (variant, name) in enumerate(zip(variants, names, strict=True))
    ]
    scheduler = schedulers[0] if shared else None  # a variant's own, or that of all
    common: dict[str, Any] = {"scheduler": scheduler, "batch_size": size, "learners": num_learners(first)}
    train = dataclasses.replace(first, **common, run=run)
    jobs = {str(variant.name): config for variant, config in zip(named, configs, strict=True)}
    return SweepConfig(train=train, variants=named, jobs=jobs, go_on=go_on, stop=first.stop or ())


def train_together(
    configs: Sequence[TrainConfig], run: Run, go_on: str, say: Callable[[str], None]
) -> list[Outcome] | None:
    """Train as one sweep; return the outcome of each training, or None if they cannot be members of one sweep."""
    if len(configs) == 1:
        return None
    learners = max(map(num_learners, configs))  # with several, a sweep is no faster, and fails as a whole
    why = f"learners={learners}" if learners > 1 else why_alone(configs, goes_on=run.resume is not None)
    if why is not None:
        say(f"{len(configs)} runs one after another: {why}")
        return None
    say(side_by_side(configs))
    progress, every = all(config.run.progress for config in configs), configs[0].run.checkpoint_every
    run = dataclasses.replace(run, progress=progress, checkpoint_every=every)
    sweep = run_sweep(as_members(configs, run, go_on))
    return [_outcome(sweep, member) for member in sweep.members]


def side_by_side(configs: Sequence[TrainConfig]) -> str:
    learners = num_learners(configs[0])
    return f"{len(configs)} runs " + ("side by side, one learner each" if learners == 1 else f"of {learners} learners")


def num_learners(config: TrainConfig) -> int:
    return 1 if config.num_learners == "auto" else config.num_learners


def run_together(
    tasks: Sequence[Callable[[], Any]],
    train: Callable[[Sequence[TrainConfig]], Sequence[Outcome] | None],
    surroundings: Callable[[Any], Any],
) -> list[Any]:
    """Run each function up to its call of `bow.train`, run these trainings together, then continue the functions.

    If `train` returns None, run the trainings one after another. `surroundings(saved)` restores global state saved when
    the function was suspended (None at first), and returns a function that saves the current state.
    """
    jobs = [_Job(task, surroundings) for task in tasks]
    waiting = jobs
    try:
        while waiting:
            for job in waiting:
                job.go_on()
            waiting = [job for job in jobs if job.wanted is not None]
            if waiting:
                try:
                    outcomes = train([job.wanted for job in waiting if job.wanted is not None])
                except Exception as error:  # an error of the sweep is raised in every job
                    outcomes = [error] * len(waiting)
                outcomes = [job.alone() for job in waiting] if outcomes is None else outcomes
                for job, outcome in zip(waiting, outcomes, strict=True):
                    job.answer, job.wanted = outcome, None
    except BaseException as error:
        for job in jobs:
            if job.wanted is not None:
                job.answer, job.wanted = type(error)(*error.args), None  # a copy: tracebacks would accumulate
                job.go_on()
        raise
    for job in jobs:
        if job.error is not None:
            raise job.error
    return [job.value for job in jobs]


class _Job:
    """A function in a separate thread that runs only while `go_on` waits for it."""

    def __init__(self, task: Callable[[], Any], surroundings: Callable[[Any], Any]) -> None:
        self.wanted: TrainConfig | None = None
        self.answer: Outcome | BaseException | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self._task = task
        self._surroundings = surroundings
        self._left: Any = None
        self._random: tuple[Any, dict[str, Any], Tensor] | None = None  # states of Python, NumPy and torch
        self._may_run, self._has_paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def go_on(self) -> None:
        take_down = self._surroundings(self._left)
        if self._random is not None:
            random.setstate(self._random[0])
            numpy.random.set_state(self._random[1])
            torch.set_rng_state(self._random[2])
        if not self._thread.ident:
            self._thread.start()
        self._may_run.release()
        self._has_paused.acquire()
        self._left = take_down()
        self._random = random.getstate(), dict(numpy.random.get_state(legacy=False)), torch.get_rng_state()
        if self.wanted is None:
            self._thread.join()

    def alone(self) -> Outcome:
        """Run the requested training in the calling thread, the main one, which receives signals."""
        assert self.wanted is not None
        take_down = self._surroundings(self._left)
        try:
            return run_training(self.wanted)
        except Exception as error:
            return error
        finally:
            self._left = take_down()

    def _run(self) -> None:
        self._may_run.acquire()
        TRAIN_OVERRIDE.set(self._train)
        try:
            self.value = self._task()
        except BaseException as error:
            self.error = error
        finally:
            self._has_paused.release()

    def _train(self, config: TrainConfig) -> Result:
        path = config.run.path
        if path is not None:  # relative to this job's working directory
            config = config.with_run(path=Path(path).absolute())
        self.wanted = config
        self._has_paused.release()
        self._may_run.acquire()
        assert self.answer is not None
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def _outcome(sweep: Sweep, member: Member) -> Outcome:
    if member.stopped == "diverged":
        return DivergenceError(
            f"training of {member.name} diverged: its loss, gradient or weights were not finite; lower the learning "
            "rate, or look for NaN in the data (alone, a training discards such a step and goes on)"
        )
    path = RunDirectory(member.run_dir.absolute()).model_path
    if member.model is None:
        return RunDirectoryError(f"{member.name} has ended, and its model is not at {path}; train it again")
    last = member.history[-1]
    return Result(
        model=member.model,
        history=member.history,
        throughput=sweep.throughput / max(1, min(sweep.at_once, len(sweep.members))),
        learners=1,
        engine=member.engine,
        time_to_target=last["time_s"] if member.stopped == "target" else None,
        run_dir=path.parent,
        seconds=last["time_s"],
        model_path=path if path.exists() else None,
        best=member.best,
        stopped=member.stopped,
        interrupted_by=sweep.interrupted_by,
    )


def _why_no_member(config: TrainConfig) -> str | None:
    sync = config.sync
    count = 1 if is_member() else choose_devices(config.devices.count)[1]
    is_one = num_learners(config) == 1
    reasons = {
        f"devices={count}; members use one device": count not in (None, 1),
        "processes train together": is_member(),
        "operators are split by a partition": config.partition is not None,
        f"sync={type(sync).__name__} changes what one learner does": is_one
        and not (type(sync) is Independent or (type(sync) is SMA and sync.alpha is None)),
        f"on_nan={config.on_nan}": config.on_nan == "continue",
        "they have callbacks": bool(config.callbacks),
        "they have loggers of their own": bool(config.run.loggers),
        "they resume from checkpoints": config.run.resume is not None,
        "run.on_interrupt=return: members of a sweep can only be interrupted together": (
            config.run.on_interrupt == "return"
        ),
    }
    return next((why for why, applies in reasons.items() if applies), why_no_member(config, not is_one))
