"""The cost of AllReduce, and whether learning tasks hide it.

Processes on the cores of this machine, each with a share of them, train side by side and average. In turns within the
same processes: without averaging (`Independent`), averaged within each process alone, with one AllReduce a round, which
goes by shared memory, with one where learners follow a reference model of their device (`levels=2`), with an AllReduce
by Gloo's sockets, with that in buckets, with one sum for each variable, and with an AllReduce that arrives late by half
of what a round takes without averaging; and in engine `eager`, without averaging, with one AllReduce, and as the paper
has it, variable by variable by the learner that gets to its gradient last. Then the sum is taken apart: copying,
waiting for the other process and for its part to be seen, adding up.
"""

import functools
import statistics
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
from bow.cluster import ALONE, Bucket, PendingSum, Processes, Ranks, World
from bow.data import Stacked
from bow.engines import LearningConfig, Loop, RoundLoop, make_engine, step_from_loss
from bow.replicas import LearnerGroup
from bow.sync import SMA, Independent, Synchroniser

CPU = torch.device("cpu")

LATE = 0.5  # A late AllReduce arrives behind this part of a round

LIMIT = 1.1  # A round with a late AllReduce may take so many times what it takes without averaging

WARM_UP_ROUNDS = 5

TAKEN_APART = 4  # times the rounds of a turn, whose sums are taken apart

BASE, OWN, WHOLE, LEVELS, GLOO, BUCKETS, VARIABLES, DELAYED = (
    "no averaging",
    "averaged within each process",
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
    world: type[Processes] | None = Processes  # what they are summed by; None: nothing beyond the process
    bucket: Bucket = None  # as in `Processes`


@dataclass(frozen=True)
class Config(harness.Config):
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

    def __init__(self, sum: PendingSum, at: float, world: "Late") -> None:
        self._sum = sum
        self._at = at
        self._world = world

    def wait(self) -> None:
        self._sum.wait()
        began = time.perf_counter()
        if self._at > began:
            time.sleep(self._at - began)
            self._world.slept_s += time.perf_counter() - began


class BySockets(Processes):
    """Processes that share no memory."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._may_share = False


class Late(Processes):
    """Processes whose sums arrive late."""

    delay_s = 0.0
    slept_s = 0.0

    def sum(self, tensor: Tensor) -> PendingSum:
        """As ever, but it arrives later."""
        at = time.perf_counter() + self.delay_s
        return Arriving(super().sum(tensor), at, self)


class Parts:
    """Takes the sums of a world in shared memory apart, from now on: seconds of each, and when it was begun."""

    def __init__(self, world: Processes) -> None:
        shared = world._shared
        assert shared is not None
        self._begin, self._wait_for = shared.begin, shared.wait_for
        self.copying: list[float] = []
        self.waiting: list[float] = []
        self.all_after: list[float] = []
        self.begun: list[int] = []  # by a clock that all processes of a machine have
        shared.begin, shared.wait_for = self.begin, self.wait_for  # type: ignore[method-assign]

    def begin(self, tensor: Tensor) -> PendingSum:
        began = time.perf_counter()
        pending = self._begin(tensor)
        self.copying.append(time.perf_counter() - began)
        self.begun.append(time.monotonic_ns())
        return Clocked(pending, self)

    def wait_for(self, number: int) -> None:
        """Wait until everybody has said so."""
        began = time.perf_counter()
        self._wait_for(number)
        self.waiting.append(time.perf_counter() - began)


class Clocked(PendingSum):
    """A sum in shared memory whose end is timed."""

    def __init__(self, sum: PendingSum, parts: Parts) -> None:
        self._sum, self._parts = sum, parts

    def wait(self) -> None:
        began = time.perf_counter()
        self._sum.wait()
        self._parts.all_after.append(time.perf_counter() - began)


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
    return {
        "fixed": f"SGD with momentum 0.9, {SMA()!r}, float32",
        "late": LATE,
        "limit": LIMIT,
        "models": (models := harness.together(config.devices, functools.partial(measure_all, config=config))),
        "verdict": {name: ways[DELAYED]["ratio"]["median"] <= LIMIT for name, ways in models.items()},
    }


def missed(values: Mapping[str, Any]) -> bool:
    """Whether a late AllReduce is not hidden."""
    return not all(values["verdict"].values())


def page(values: Mapping[str, Any]) -> dict[str, Any]:
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
        sums = runner.sums / counts
        parts = taken_apart(runner, world, counts) if runner.way.name in (WHOLE, DELAYED) else None
        found[runner.way.name] = {
            "seconds_a_round": spread(own, 6),
            "ratio": spread(ratios(own, base), 3),
            "sums_a_round": sums,
            **({} if parts is None else {"parts_us": parts}),
        }
        runner.engine.close()
    return found


def taken_apart(runner: Runner, world: World, counts: int) -> dict[str, float] | None:
    """Median microseconds of a sum's parts, in this process; None where it does not go by shared memory."""
    own = runner.world
    if not isinstance(own, Processes) or not all(world.all_gather(own._shared is not None)):
        return None
    parts = Parts(own)
    slept = own.slept_s if isinstance(own, Late) else 0.0
    world.sum_numbers([0.0])
    runner.rounds(TAKEN_APART * counts)
    slept = own.slept_s - slept if isinstance(own, Late) else 0.0
    begun = list(zip(*world.all_gather(parts.begun), strict=True))
    found = {
        "copying": parts.copying,
        "waiting": parts.waiting,
        "later than this process": [(max(times) - times[world.rank]) / 1e9 for times in begun],
        "adding up": [both - alone for both, alone in zip(parts.all_after, parts.waiting, strict=True)],
        "arriving late": [slept / len(begun)],
    }
    return {name: round(statistics.median(seconds) * 1e6, 1) for name, seconds in found.items()}


def ways(config: Config) -> list[Way]:
    return [
        Way(BASE, BASE, Independent()),
        Way(OWN, BASE, SMA(), world=None),
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
        own = ALONE if way.world is None else way.world(CPU, ranks, None, bucket_mb=way.bucket)
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
