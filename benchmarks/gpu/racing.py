"""Contestants on a device that take turns, until their time is over; and who of them is held against whom."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.gpu.machine import Machine, place
from benchmarks.gpu.parts import Allotment, Context
from benchmarks.gpu.peers import Peer
from benchmarks.gpu.workloads import workload
from benchmarks.harness import CaseError, first_words, ratios, spread, take_turns
from benchmarks.trainings import ENDLESS, MOST_ROUNDS, BowTraining, Data, Feed, GraphedTraining, PlainTraining, Training
from benchmarks.workloads import Workload
from bow import Engine
from bow.data import open_stream
from bow.devices import StreamDevice
from bow.schedule import Schedule
from bow.sync import Synchroniser

PLAIN = "pytorch"
GRAPHED = "pytorch, whole step as a CUDA graph"
COMPILED = "pytorch compiled"
REDUCED = "pytorch compiled, reduce-overhead"
COMPILED_GRAPHED = "pytorch compiled, whole step as a CUDA graph"


def bow_name(engine: str, learners: int) -> str:
    return f"{engine}, {learners}"


def best_of_bow(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The fastest engine and number of learners."""
    return _fastest([row for row in rows if row["engine"] is not None])


def one_graphed(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """One model, by whoever is fastest at it: what several are held against."""
    return _fastest([row for row in rows if row["learners"] in (None, 1)])


def _fastest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return max(rows, key=lambda row: float(row["samples_per_s"]["median"]), default=None)


@dataclass(frozen=True)
class Subject:
    """What contestants train: a model, and data in the memory of the host."""

    machine: Machine
    workload: Workload
    data: Data
    batch_size: int  # per learner

    def feed(self, device: StreamDevice) -> Feed:
        """Batches of data that lies on the device, for all in the same order."""
        with device.issuing():
            inputs, targets = (place(device, tensor) for tensor in self.data)
            return Feed((inputs, targets), self.batch_size)

    def plain(self, compile: str | None = None) -> PlainTraining:
        device = self.machine.device
        with device.issuing():
            model = self.workload.model().to(device.torch_device)
            return PlainTraining(model, self.workload.loss, self.feed(device), compile=compile)

    def graphed(self, compile: bool = False) -> GraphedTraining:
        """The whole step as one graph."""
        return GraphedTraining(self.machine.device, lambda: self.plain("default" if compile else None))

    def bow(
        self,
        learners: int,
        engine: str,
        device: StreamDevice | None = None,
        sync: Synchroniser | None = None,
        compile: bool = False,
        schedule: Schedule | None = None,
        resides: bool = True,
        most_rounds: int = MOST_ROUNDS,
    ) -> BowTraining:
        """bow: several learners, averaged in every round."""
        where = self.machine.device if device is None else device
        with where.issuing():
            stream = open_stream(self.data, batch_size=self.batch_size, steps=ENDLESS)
        return BowTraining(
            self.workload.model,
            self.workload.loss,
            stream,
            learners,
            Engine(schedule=schedule).run_by(engine, compile),
            sync=sync,
            device=where,
            make_feed=lambda: self.feed(where),
            resides=resides,
            most_rounds=most_rounds,
        )


class Contestant:
    """A training that takes turns with others on one machine; it is warm once it is made."""

    def __init__(self, machine: Machine, make: Callable[[], Training], device: StreamDevice | None = None) -> None:
        self._machine = machine
        self._device = machine.device if device is None else device
        began = time.perf_counter()
        with machine.around():
            self.training: Any = make()
            with self._device.issuing():
                self.training()
                machine.synchronize()
                self.first_call_s = time.perf_counter() - began
                self._call_s = max(1e-7, machine.seconds(self.training, machine.warm_up) / machine.warm_up)

    @property
    def engine(self) -> str | None:
        """What really runs, if it is bow."""
        engine: str | None = self.training.engine
        return engine

    def loss(self) -> float:
        """The mean loss of the last round, of bow; nothing is under way by then."""
        return float(self.training.loss())

    def turn(self, seconds: float) -> float:
        """Samples per second in a turn of so many seconds, of at least one call."""
        calls = max(1, round(seconds / self._call_s))
        samples = 0

        def call() -> None:
            nonlocal samples
            samples += self.training()

        with self._machine.around(), self._device.issuing():
            took = self._machine.seconds(call, calls)
        self._call_s = took / calls
        return samples / took

    def close(self) -> None:
        self.training.close()
        del self.training


class Runner(Protocol):
    """Who takes turns: a `Contestant` of this process, or a `Peer` in another one."""

    first_call_s: float

    @property
    def engine(self) -> str | None: ...

    def turn(self, seconds: float) -> float: ...

    def loss(self) -> float: ...

    def close(self) -> None: ...


@dataclass
class Race:
    """Contestants on one model and batch size."""

    context: Context  # of the part
    model: str
    batch_size: int  # per learner
    runners: dict[str, Runner] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    subject: Subject = field(init=False)

    def __post_init__(self) -> None:
        chosen = workload(self.model, self.context.config.fake)
        data = chosen.make_data(self.context.config.samples)
        self.subject = Subject(self.context.machine, chosen, data, self.batch_size)

    def plain(self, name: str, **settings: Any) -> None:
        self.other(name, None, lambda: self.subject.plain(**settings))

    def graphed(self, name: str, **settings: Any) -> None:
        self.other(name, None, lambda: self.subject.graphed(**settings))

    def bow(self, name: str, learners: int, device: StreamDevice | None = None, **settings: Any) -> None:
        most = MOST_ROUNDS if not self.context.config.fake else 2
        make = lambda: self.subject.bow(learners, device=device, most_rounds=most, **settings)  # noqa: E731
        self.other(name, learners, make, device)

    def other(
        self, name: str, learners: int | None, make: Callable[[], Training], device: StreamDevice | None = None
    ) -> None:
        # Whoever takes part shall have a turn as well.
        if self.runners and self.context.time.left <= 2 * self.context.config.stint_s * len(self.runners):
            self.context.cut(f"{name}: left out")
            return
        try:
            runner = Contestant(self.context.machine, make, device)
        except Exception as error:
            self.context.note(f"{name}: left out, {first_words(error)}")
            return
        self.enter(name, learners, runner)

    def peers(self, most_s: float, learners: Mapping[str, int | None]) -> None:
        """Let those of other processes take part that are ready by then."""
        for name, peer in ready_peers(self.context, most_s):
            self.enter(name, learners.get(name), peer)

    def run(self, repeats: int, stint_s: float) -> dict[str, list[float]]:
        """Samples per second by contestant and repeat, each repeat in the other direction.

        Repeats end when the time is over; one is made in any case.
        """
        warm = self.again(self.runners, 1, 0.0)  # every capture has emptied the caches of all others
        for name, (rate,) in warm.items():
            self.about[name]["warm_up_samples_per_s"] = round(rate, 1)
        self._save({name: [] for name in warm})
        began = time.monotonic()

        def ends(repeat: int, rates: Mapping[str, list[float]]) -> bool:
            nonlocal began
            self._save(rates)
            took, began = time.monotonic() - began, time.monotonic()
            is_over = not self.context.time.allows(took) and repeat + 1 < repeats
            if is_over:
                self.context.cut(f"{repeat + 1} of {repeats} turns")
            return is_over

        return self.again(warm, repeats, stint_s, ends)

    def again(
        self,
        names: Iterable[str],
        repeats: int,
        stint_s: float,
        ends: Callable[[int, Mapping[str, list[float]]], bool] | None = None,
    ) -> dict[str, list[float]]:
        """Some of them, still warm, alone: samples per second by contestant and repeat."""

        def failed(name: str, error: Exception) -> None:
            self.context.note(f"{name}: failed in its turn, {first_words(error)}")

        turns = {name: functools.partial(self.runners[name].turn, stint_s) for name in names}
        return take_turns(turns, repeats, failed=failed, after=ends)

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()
        self.runners.clear()
        self.context.machine.tidy()

    def enter(self, name: str, learners: int | None, runner: Runner) -> None:
        """Let whoever is warm take part."""
        self.runners[name] = runner
        about = {"learners": learners, "engine": runner.engine, "first_call_s": round(runner.first_call_s, 2)}
        self.about[name] = about

    def _save(self, rates: Mapping[str, Sequence[float]]) -> None:
        rows = []
        for name, timed in rates.items():
            about = self.about[name]
            samples = self.batch_size * (about["learners"] or 1)
            own = timed or [about["warm_up_samples_per_s"]]  # until it has had a turn
            row = {
                "name": name,
                **about,
                "samples_per_s": spread(own, 1),
                "round_ms": spread([1e3 * samples / rate for rate in own], 4),
                "rates": [round(rate, 1) for rate in timed],
            }
            rows.append(row)
        self.context.record(model=self.model, batch_size=self.batch_size, contestants=rows)


def ready_peers(context: Context, most_s: float) -> Iterator[tuple[str, Peer]]:
    """Those of other processes that are ready by then, with their names."""
    waiting = Allotment(min(most_s, context.time.left))
    for name, address in context.peers.items():
        try:
            yield name, Peer(address, waiting)
        except CaseError as error:
            context.note(f"{name}: left out, {error}")


def gain(rates: Mapping[str, Sequence[float]], name: str, over: str) -> dict[str, Any] | None:
    """How much faster one contestant is than another, repeat by repeat; None where one of them is missing."""
    if not rates.get(name) or not rates.get(over):
        return None
    return spread(ratios(rates[name], rates[over]), 3)
