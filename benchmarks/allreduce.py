"""`python -m benchmarks allreduce`: what the sum between devices costs, and whether the learning tasks hide it.

Processes on the cores of this machine, each with a share of them, train side by side and average over Gloo. In turns
within the same processes: without averaging (`Independent`), with one AllReduce a round, with the sum in buckets,
with one sum for each variable, and with an AllReduce that arrives late by half of what a round takes without
averaging; and in engine `eager`, without averaging, with one AllReduce, and as the paper has it, variable by variable
by the learner that gets to its gradient last.
"""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.arguments import check_positive, setting
from benchmarks.environment import inspect_environment
from benchmarks.leader import ByLeader
from benchmarks.measure import Spread
from benchmarks.results import RESULTS, Result, Table, console, prepare_output, write_json, write_text
from benchmarks.workloads import WORKLOADS
from bow.cluster import Bucket, PendingSum, Processes, Ranks, WorkerJob, World, join, start
from bow.engines import Loop, RoundLoop, Stacked, TaskSettings, make_engine, step_from_loss
from bow.errors import SettingError
from bow.replicas import LearnerGroup
from bow.sync import SMA, Independent, Synchroniser

CPU = torch.device("cpu")

LATE = 0.5  # A late AllReduce arrives behind this part of a round

LIMIT = 1.1  # A round with a late AllReduce may take so many times what it takes without averaging

WARM_UP_ROUNDS = 5

BASE, WHOLE, BUCKETS, VARIABLES, DELAYED = (
    "no averaging",
    "one AllReduce",
    "buckets",
    "one sum a variable",
    "one AllReduce, late",
)
EAGER_BASE, EAGER_WHOLE, LEADER = "eager: no averaging", "eager: one AllReduce", "eager: by the last at a variable"


@dataclass(frozen=True)
class Way:
    """One way to average."""

    name: str  # of the way
    over: str  # name of the way without averaging that its rounds are compared with
    sync: Synchroniser  # what keeps the learners together
    engine: str | None = None  # what runs them; None: the setting's
    world: type[Processes] = Processes  # what they are summed by
    bucket: Bucket = None  # as in `Processes`


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for allreduce.json and allreduce.md")  # noqa: RUF009 - it is dataclasses.field
    devices: int = setting(2, "processes")
    learners: int = setting(1, "learners of each")
    batch_size: int = setting(16, "samples per learner and round")
    models: tuple[str, ...] = setting(("mlp", "lenet", "resnet8"), "what is trained", choices=tuple(WORKLOADS))
    engine: str = setting("graph", "engine", choices=("eager", "graph", "streams"))
    bucket_mb: float = setting(0.25, "MiB of a bucket")
    turns: int = setting(11, "turns of everybody")
    stint_s: float = setting(0.5, "seconds of each")
    quick: bool = setting(False, "a small part, to see that it works: the MLP, three short turns")

    def __post_init__(self) -> None:
        check_positive(self, "devices", "learners", "batch_size", "bucket_mb", "turns", "stint_s")
        if self.devices < 2:
            raise SettingError(f"devices must be at least 2, got {self.devices}; there is no sum with one")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        return replace(self, models=("mlp",), turns=3, stint_s=0.1) if self.quick else self


class Arriving(PendingSum):
    """A sum that is there, but not before a moment."""

    def __init__(self, sum: PendingSum, at: float) -> None:
        self._sum = sum
        self._at = at

    def wait(self) -> None:
        """Wait for both."""
        self._sum.wait()
        time.sleep(max(0.0, self._at - time.perf_counter()))


class Late(Processes):
    """Processes whose sums arrive late."""

    delay_s = 0.0

    def sum(self, tensor: Tensor) -> PendingSum:
        """As ever, but it arrives later."""
        at = time.perf_counter() + self.delay_s
        return Arriving(super().sum(tensor), at)


@dataclass
class Runner:
    """Learners that average in one of the ways."""

    way: Way
    engine: Loop
    batches: Stacked
    sums: int = 0

    @property
    def world(self) -> World:
        """What they are summed by."""
        return self.engine.group.world

    def rounds(self, count: int) -> float:
        """Run so many rounds; seconds a round."""
        before, began = self.world.sums, time.perf_counter()
        for _ in range(count):
            self.engine.round(self.batches)
        seconds = time.perf_counter() - began
        self.sums = self.world.sums - before
        return seconds / count


def run(settings: Settings, command: str) -> int:
    """Measure, and write `allreduce.json` and `allreduce.md`; 1 where a late AllReduce is not hidden, else 0."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began = time.perf_counter()
    measure = functools.partial(measure_all, settings=settings)
    with start(settings.devices, CPU, WorkerJob(functools.partial(_elsewhere, measure))) as world:
        found = measure(world)
    findings: dict[str, Any] = {
        "fixed": f"SGD with momentum 0.9, {SMA()!r}, float32, Gloo on one machine",
        "late": LATE,
        "limit": LIMIT,
        "models": found,
    }
    environment = inspect_environment()
    values = Result("allreduce", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    write_json(settings.out / "allreduce.json", values)
    write_text(settings.out / "allreduce.md", markdown(values, str(environment)))
    table(found).show("a round, over one without averaging")
    hidden = all(ways[DELAYED]["ratio"]["median"] <= LIMIT for ways in found.values())
    console().print(f"A late AllReduce is {'' if hidden else 'not '}hidden.", highlight=False)
    return 0 if hidden else 1


def _elsewhere(measure: Callable[[World], object]) -> None:
    with join(CPU) as world:
        measure(world)


def measure_all(world: World, settings: Settings) -> dict[str, Any]:
    """All models, in every process; what rank 0 finds is what counts."""
    return {model: measure_model(world, settings, model) for model in settings.models}


def measure_model(world: World, settings: Settings, model: str) -> dict[str, Any]:
    """Seconds a round of every way to average, and their ratios to none, turn by turn."""
    runners = list(_runners(world, settings, model))
    for runner in runners:
        runner.rounds(WARM_UP_ROUNDS)
    base_s = world.leaders(runners[0].rounds(WARM_UP_ROUNDS))
    counts = max(1, round(settings.stint_s / base_s))
    for runner in runners:
        if isinstance(runner.world, Late):
            runner.world.delay_s = LATE * world.leaders(runners[0].rounds(counts))
    times: dict[str, list[float]] = {runner.way.name: [] for runner in runners}
    for turn in range(settings.turns):
        for runner in runners if turn % 2 else reversed(runners):
            world.add_up([0.0])  # all begin together
            times[runner.way.name].append(runner.rounds(counts))
    found = {}
    for runner in runners:
        own, base = times[runner.way.name], times[runner.way.over]
        found[runner.way.name] = {
            "seconds_a_round": Spread.of(own).as_dict(digits=6),
            "ratio": Spread.of([a / b for a, b in zip(own, base, strict=True)]).as_dict(digits=3),
            "sums_a_round": runner.sums / counts,
        }
        runner.engine.close()
    return found


def ways(settings: Settings) -> list[Way]:
    """All that race."""
    return [
        Way(BASE, BASE, Independent()),
        Way(WHOLE, BASE, SMA()),
        Way(BUCKETS, BASE, SMA(), bucket=settings.bucket_mb),
        Way(VARIABLES, BASE, SMA(), bucket="variable"),
        Way(DELAYED, BASE, SMA(), world=Late),
        Way(EAGER_BASE, EAGER_BASE, Independent(), engine="eager"),
        Way(EAGER_WHOLE, EAGER_BASE, SMA(), engine="eager"),
        Way(LEADER, EAGER_BASE, SMA(), engine=ByLeader.name),
    ]


def _runners(world: World, settings: Settings, model: str) -> Iterator[Runner]:
    workload = WORKLOADS[model]
    data = workload.make_data(settings.batch_size)
    batches = Stacked(tuple(tensor.expand(settings.learners, *tensor.shape).contiguous() for tensor in data))
    for way in ways(settings):
        ranks = Ranks(world.rank, world.size, world.local_rank, world.local_size)
        own = way.world(CPU, ranks, None, bucket_mb=way.bucket)
        torch.manual_seed(0)
        optimizer = functools.partial(torch.optim.SGD, lr=0.001, momentum=0.9)
        group = LearnerGroup(workload.build(), optimizer, learners=settings.learners, device=CPU, world=own)
        task = TaskSettings(step_from_loss(workload.loss))
        yield Runner(way, _engine(way.engine or settings.engine, group, way.sync, task), batches)


def _engine(name: str, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> Loop:
    if name == ByLeader.name:
        assert isinstance(sync, SMA)
        return RoundLoop(ByLeader, group, sync, settings)
    return make_engine(name, group, sync, settings, None)


def table(found: dict[str, Any]) -> Table:
    """By model and way: milliseconds a round, and how many times those without averaging."""
    rows = [
        [
            WORKLOADS[model].title,
            way,
            f"{1000 * values['seconds_a_round']['median']:.2f}",
            "{median:.2f} ({low:.2f} to {high:.2f})".format(**values["ratio"]),
            f"{values['sums_a_round']:g}",
        ]
        for model, ways in found.items()
        for way, values in ways.items()
    ]
    return Table(("model", "averaging", "ms a round", "over none", "sums a round"), rows, left=("model", "averaging"))


def markdown(values: dict[str, Any], environment: str) -> str:
    """The page."""
    settings = values["settings"]
    sized = f"{settings['devices']} processes on the cores of one machine, {settings['learners']} learners each"
    return f"""# What the sum between devices costs

`{values["command"]}`, {environment}

{sized} of batch {settings["batch_size"]}, engine {settings["engine"]};
{values["fixed"]}. Everybody in turns within the same processes, {settings["turns"]} times, every other
time in reverse order. A ratio is that of a turn: a round over one of the same engine without averaging; median (lowest
to highest). The paper's way, {LEADER!r}, begins a variable's sum when the last learner of the device has its gradient.
Buckets are of {settings["bucket_mb"]} MiB. A late AllReduce arrives {values["late"]:g} of a round without averaging
after it has begun, and is to cost at most {values["limit"]:g} times such a round.

{table(values["models"]).markdown()}"""
