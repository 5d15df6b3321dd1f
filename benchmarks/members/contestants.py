"""Ways to train several members: independent models on the same data in memory.

Member `s` starts with the weights of seed `s` and processes its batches in the order of seed `s`: all contestants but
bow, which has its own order, have equal final weights, up to rounding.
"""

import abc
import copy
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

import bow
from benchmarks.harness import rate, warm_up
from benchmarks.trainings import ENDLESS, SGD, Data, Feed, PlainTraining, StepTraining, Tensors, compiled_step
from benchmarks.workloads import WORKLOADS, Workload
from bow.devices import StreamDevice
from bow.members import Member
from bow.members.cohort import MOST_ROUNDS, Cohort, SharedSamples, run_side_by_side
from bow.members.config import SweepConfig
from bow.members.member import Progress, check_variants
from bow.training.config import TrainConfig


@dataclass(frozen=True)
class Task:
    model: str  # a name in `WORKLOADS`
    batch_size: int  # of each member
    samples: int  # in memory, the same for all
    seeds: tuple[int, ...]  # one per member

    @property
    def workload(self) -> Workload:
        return WORKLOADS[self.model]

    @functools.cached_property
    def data(self) -> Data:
        return self.workload.make_data(self.samples)

    @property
    def steps(self) -> int:
        """Per epoch."""
        return max(1, self.samples // self.batch_size)

    def feed(self, seed: int) -> Feed:
        return Feed(self.data, self.batch_size, seed)


class Members(abc.ABC):
    """A contestant, in its process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._run: Callable[[], int] | None = None

    def turn(self, seconds: float) -> float:
        """Return samples per second of all members in the steady state, in a measurement window."""
        if self._run is None:
            self._run = self._steady()
            warm_up(self._run)
        return rate(self._run, seconds)

    @abc.abstractmethod
    def _steady(self) -> Callable[[], int]:
        """Begin what is measured: trains a bit, and returns the number of samples."""

    @abc.abstractmethod
    def train(self, epochs: int) -> list[Tensors]:
        """Train all members from the beginning; returns the weights of each."""


class OneByOne(Members):
    """Members that are trained in turn; the first one is what is measured."""

    def _steady(self) -> Callable[[], int]:
        return self._begun(self._task.seeds[0])[1]

    def train(self, epochs: int) -> list[Tensors]:
        found = []
        for seed in self._task.seeds:
            weights, run = self._begun(seed)
            for _ in range(epochs * self._task.steps):
                run()
            found.append({name: tensor.clone() for name, tensor in weights.items()})
        return found

    @abc.abstractmethod
    def _begun(self, seed: int) -> tuple[Tensors, Callable[[], int]]:
        """Return the weights of a member, and what trains it on a batch."""


class Loop(OneByOne):
    """One member after another, in one module, compiled once if at all: each member's weights are loaded into it."""

    def __init__(self, task: Task, compile: str | None = None) -> None:
        super().__init__(task)
        self._compile = compile
        self._module = task.workload.model(task.seeds[0])
        self._forward: Any = None

    def _begun(self, seed: int) -> tuple[Tensors, Callable[[], int]]:
        self._module.load_state_dict(self._task.workload.model(seed).state_dict())
        training = PlainTraining(self._module, self._task.workload.loss, self._task.feed(seed))
        if self._compile is not None:
            if self._forward is None:
                self._forward = torch.compile(self._module, dynamic=False, mode=self._compile)
            training.forward = self._forward
        return self._module.state_dict(), training


class StepLoop(OneByOne):
    """One member after another, by a single compiled function of weights, momenta and a batch: the whole step."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._step = compiled_step(task.workload.model(), task.workload.loss)

    def _begun(self, seed: int) -> tuple[Tensors, Callable[[], int]]:
        model = self._task.workload.model(seed)
        return model.state_dict(), StepTraining(model, self._task.feed(seed), self._step)


class Stacked(Members):
    """All members at once with `torch.func`, as in PyTorch's tutorial on model ensembling, or compiled."""

    def __init__(self, task: Task, compile: bool = False) -> None:
        super().__init__(task)
        loss, skeleton = task.workload.loss, copy.deepcopy(task.workload.model()).to("meta")

        def forward(parameters: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensors]:
            own = {name: buffer.clone() for name, buffer in buffers.items()}
            return loss(functional_call(skeleton, {**parameters, **own}, (inputs,)), targets), own

        self._differentiate: Any = vmap(grad_and_value(forward, has_aux=True), randomness="different")
        if compile:
            self._differentiate = torch.compile(self._differentiate, dynamic=False)

    def _steady(self) -> Callable[[], int]:
        return self._begun()[1]

    def train(self, epochs: int) -> list[Tensors]:
        weights, run = self._begun()
        for _ in range(epochs * self._task.steps):
            run()
        return [{name: tensor[index] for name, tensor in weights.items()} for index in range(len(self._task.seeds))]

    def _begun(self) -> tuple[Tensors, Callable[[], int]]:
        task = self._task
        parameters, buffers = stack_module_state([task.workload.model(seed) for seed in task.seeds])
        optimizer, feeds = SGD(parameters.values()), [task.feed(seed) for seed in task.seeds]

        def run() -> int:
            indices = torch.cat([feed.indices() for feed in feeds])
            inputs, targets = (
                part.index_select(0, indices).view(len(feeds), -1, *part.shape[1:]) for part in task.data
            )
            with torch.no_grad():
                gradients, (_, after) = self._differentiate(parameters, buffers, inputs, targets)
            for name, parameter in parameters.items():
                parameter.grad = gradients[name]
            optimizer.step()
            for name, buffer in buffers.items():
                buffer.copy_(after[name])
            return len(indices)

        return {**parameters, **buffers}, run


class Bow(Members):
    """bow's members, with engine `graph`: operator by operator, or compiled."""

    def __init__(self, task: Task, compile: bool = False) -> None:
        super().__init__(task)
        self._engine = bow.Engine("graph", compile=compile)

    def _steady(self) -> Callable[[], int]:
        task = self._task
        torch.set_num_threads(1)  # as `bow.sweep` does
        cohort = begun(task.workload, task.data, task.batch_size, task.seeds, self._engine, torch.device("cpu"))
        return functools.partial(train_on, cohort)

    def train(self, epochs: int) -> list[Tensors]:
        task = self._task
        with tempfile.TemporaryDirectory() as folder:
            swept = bow.sweep(
                task.workload.build,
                task.data,
                task.workload.loss,
                variants=bow.grid(seed=task.seeds),
                optimizer=SGD,
                batch_size=task.batch_size,
                steps=epochs * task.steps,
                engine=self._engine if self._engine.compile else "auto",
                run=bow.Run(folder, progress=False),
            )
        return [dict(member.model.state_dict()) for member in swept.members if member.model is not None]


def begun(
    workload: Workload,
    data: Data,
    batch_size: int,
    seeds: Iterable[int],
    engine: bow.Engine,
    device: torch.device | StreamDevice,
) -> Cohort:
    """bow's members on a device, before their first round, each with a row."""
    train = TrainConfig(
        model=workload.build,
        data=data,
        loss=workload.loss,
        optimizer=SGD,
        batch_size=batch_size,
        steps=ENDLESS,
        learners=1,
        engine=engine,
    )
    config = SweepConfig(train=train, variants=check_variants(bow.grid(seed=seeds)))
    waiting = [
        Progress(Member(n, variant, Path()), config.kind_of(variant)) for n, variant in enumerate(config.variants)
    ]
    cohort = Cohort(config, waiting[0], len(waiting), device, SharedSamples(data), rounds=None)
    for each in waiting:
        cohort.place(each)
    return cohort


def train_on(cohort: Cohort, most_rounds: int = MOST_ROUNDS) -> int:
    """Run a round, or on a GPU several; returns the number of samples of all members."""
    before = _samples(cohort)
    run_side_by_side([cohort], most_rounds)
    return _samples(cohort) - before


def _samples(cohort: Cohort) -> int:
    return sum(progress.samples for progress in cohort.rows if progress is not None)


LOOP, COMPILED, STEP, PINNED, PINNED_STEP, STACKED, STACKED_COMPILED, BOW, BOW_COMPILED = (
    "loop",
    "compiled loop",
    "compiled-step loop",
    "two pinned processes",
    "two pinned processes (compiled step)",
    "torch.func",
    "torch.func (compiled)",
    "bow",
    "bow (compiled)",
)
OWN = (BOW, BOW_COMPILED)
MAKERS: dict[str, Callable[[Task], Members]] = {
    LOOP: Loop,
    COMPILED: functools.partial(Loop, compile="default"),
    STEP: StepLoop,
    PINNED: Loop,
    PINNED_STEP: StepLoop,
    STACKED: Stacked,
    STACKED_COMPILED: functools.partial(Stacked, compile=True),
    BOW: Bow,
    BOW_COMPILED: functools.partial(Bow, compile=True),
}
APART = (PINNED, PINNED_STEP)  # divide their members among processes with a core each
ONE_PROCESS = tuple(name for name in MAKERS if name not in (*APART, *OWN))


def shares(task: Task, processes: int) -> Iterator[Task]:
    """Divide the members of a task among processes."""
    for index in range(processes):
        yield Task(task.model, task.batch_size, task.samples, task.seeds[index::processes])


# The following functions run in the process of a contestant.

_entered: list[Members] = []


def enter(name: str, task: Task, core: int | None) -> None:
    """Create a contestant, optionally pinned to a core."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    torch._dynamo.config.allow_rnn = True  # otherwise torch.compile skips `nn.LSTM`
    _entered.append(MAKERS[name](task))


def turn(seconds: float) -> float:
    return _entered[0].turn(seconds)


def train(epochs: int) -> None:
    _entered[0].train(epochs)


def weights(name: str, task: Task, epochs: int) -> Sequence[Tensors]:
    """Return the final weights of a contestant's members."""
    return MAKERS[name](task).train(epochs)
