"""What the sum between devices costs, and whether the learning tasks hide it.

Processes on the cores of this machine, each with a share of them, train side by side and average. In turns within the
same processes: without averaging (`Independent`), with one AllReduce a round, which goes by shared memory, with one
where learners follow a reference model of their device (`levels=2`), with an AllReduce by Gloo's sockets, with that
in buckets, with one sum for each variable, and with an AllReduce that arrives late by half of what a round takes
without averaging; and in engine `eager`, without averaging, with one AllReduce, and as the paper has it, variable by
variable by the learner that gets to its gradient last.
"""

import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import ratios, setting, spread, take_turns
from benchmarks.leader import ByLeader
from benchmarks.workloads import WORKLOADS
from bow.cluster import Bucket, PendingSum, Processes, Ranks, World
from bow.engines import LearningConfig, Loop, RoundLoop, Stacked, make_engine, step_from_loss
from bow.replicas import LearnerGroup
from bow.sync import SMA, Independent, Synchroniser

CPU = torch.device("cpu")

LATE = 0.5  # A late AllReduce arrives behind this part of a round

LIMIT = 1.1  # A round with a late AllReduce may take so many times what it takes without averaging

WARM_UP_ROUNDS = 5

BASE, WHOLE, LEVELS, GLOO, BUCKETS, VARIABLES, DELAYED = (
    "no averaging",
    "one AllReduce",
    "one AllReduce, two levels",
    "one AllReduce, by Gloo",
    "buckets, by Gloo",
    "one sum a variable, by Gloo",
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
class Config(harness.Config):
    """Settings of the experiment."""

    devices: int = setting(2, "processes", least=2)
    learners: int = setting(2, "learners of each")
    batch_size: int = setting(16, "samples per learner and round")
    models: tuple[str, ...] = setting(
        ("mlp", "lenet", "resnet8"), "what is trained", choices=tuple(WORKLOADS), quick=("mlp",)
    )
    engine: str = setting("graph", "engine", choices=("eager", "graph", "streams"))
    bucket_mb: float = setting(0.25, "MiB of a bucket")
    turns: int = setting(11, "turns of everybody", quick=3)
    stint_s: float = setting(0.5, "seconds of each", quick=0.1)


class Arriving(PendingSum):
    """A sum that is there, but not before a moment."""

    def __init__(self, sum: PendingSum, at: float) -> None:
        self._sum = sum
        self._at = at

    def wait(self) -> None:
        """Wait for both."""
        self._sum.wait()
        time.sleep(max(0.0, self._at - time.perf_counter()))


class BySockets(Processes):
    """Processes that share no memory."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._may_share = False


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


def measure(config: Config) -> dict[str, Any]:
    """All models, in every process; what rank 0 finds is what counts."""
    return {
        "fixed": f"SGD with momentum 0.9, {SMA()!r}, float32",
        "late": LATE,
        "limit": LIMIT,
        "models": harness.together(config.devices, functools.partial(measure_all, config=config)),
    }


def missed(values: Mapping[str, Any]) -> bool:
    """Whether a late AllReduce is not hidden."""
    return any(ways[DELAYED]["ratio"]["median"] > LIMIT for ways in values["models"].values())


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the page needs besides."""
    return {"leader": LEADER, "titles": {name: workload.title for name, workload in WORKLOADS.items()}}


def measure_all(world: World, config: Config) -> dict[str, Any]:
    """All models, in every process; what rank 0 finds is what counts."""
    return {model: measure_model(world, config, model) for model in config.models}


def measure_model(world: World, config: Config, model: str) -> dict[str, Any]:
    """Seconds a round of every way to average, and their ratios to none, turn by turn."""
    runners = list(_runners(world, config, model))
    for runner in runners:
        runner.rounds(WARM_UP_ROUNDS)
    base_s = world.broadcast(runners[0].rounds(WARM_UP_ROUNDS))
    counts = max(1, round(config.stint_s / base_s))
    for runner in runners:
        if isinstance(runner.world, Late):
            runner.world.delay_s = LATE * world.broadcast(runners[0].rounds(counts))

    def turn(runner: Runner) -> float:
        world.sum_numbers([0.0])  # all begin together
        return runner.rounds(counts)

    times = take_turns({each.way.name: functools.partial(turn, each) for each in runners}, config.turns)
    found = {}
    for runner in runners:
        own, base = times[runner.way.name], times[runner.way.over]
        found[runner.way.name] = {
            "seconds_a_round": spread(own, 6),
            "ratio": spread(ratios(own, base), 3),
            "sums_a_round": runner.sums / counts,
        }
        runner.engine.close()
    return found


def ways(config: Config) -> list[Way]:
    """All that race."""
    return [
        Way(BASE, BASE, Independent()),
        Way(WHOLE, BASE, SMA()),
        Way(LEVELS, BASE, SMA(levels=2)),
        Way(GLOO, BASE, SMA(), world=BySockets),
        Way(BUCKETS, BASE, SMA(), bucket=config.bucket_mb),
        Way(VARIABLES, BASE, SMA(), bucket="variable"),
        Way(DELAYED, BASE, SMA(), world=Late),
        Way(EAGER_BASE, EAGER_BASE, Independent(), engine="eager"),
        Way(EAGER_WHOLE, EAGER_BASE, SMA(), engine="eager"),
        Way(LEADER, EAGER_BASE, SMA(), engine=ByLeader.name),
    ]


def _runners(world: World, config: Config, model: str) -> Iterator[Runner]:
    workload = WORKLOADS[model]
    data = workload.make_data(config.batch_size)
    batches = Stacked(tuple(tensor.expand(config.learners, *tensor.shape).contiguous() for tensor in data))
    for way in ways(config):
        ranks = Ranks(world.rank, world.size, world.local_rank, world.local_size)
        own = way.world(CPU, ranks, None, bucket_mb=way.bucket)
        torch.manual_seed(0)
        optimizer = functools.partial(torch.optim.SGD, lr=0.001, momentum=0.9)
        group = LearnerGroup(workload.build(), optimizer, learners=config.learners, device=CPU, world=own)
        task = LearningConfig(step_from_loss(workload.loss))
        yield Runner(way, _engine(way.engine or config.engine, group, way.sync, task), batches)


def _engine(name: str, group: LearnerGroup, sync: Synchroniser, config: LearningConfig) -> Loop:
    if name == ByLeader.name:
        assert isinstance(sync, SMA)
        return RoundLoop(ByLeader, group, sync, config)
    return make_engine(name, group, sync, config, None)
