"""Contestants that take turns, until their time is over."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks import harness
from benchmarks.gpu.budget import Allotment
from benchmarks.gpu.contestants import MOST_ROUNDS, BowTraining, Contestant, GraphedTraining, PlainTraining, Training
from benchmarks.gpu.parts import Context
from benchmarks.gpu.peers import Peer, PeerError
from benchmarks.gpu.serving import first_words
from benchmarks.gpu.workloads import Data, Workload, workload
from benchmarks.harness import ratios
from bow.devices import StreamDevice


class Runner(Protocol):
    """Who takes turns: a contestant of this process or of another one."""

    first_call_s: float

    @property
    def engine(self) -> str | None:
        """What really runs, if it is bow."""
        ...

    def turn(self, seconds: float) -> float:
        """Samples per second in a turn."""
        ...

    def loss(self) -> float:
        """The mean loss of the last round, of bow."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


@dataclass
class Race:
    """Contestants on one model and batch size."""

    context: Context  # of the part
    subject: Workload  # what is trained
    batch_size: int  # per learner
    runners: dict[str, Runner] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: Data = field(init=False)

    def __post_init__(self) -> None:
        self.data = self.subject.data(self.context.settings.samples)

    @classmethod
    def of(cls, context: Context, model: str, batch_size: int) -> "Race":
        """A race on a workload by its name."""
        return cls(context, workload(model, context.settings.fake), batch_size)

    def plain(self, name: str, **settings: Any) -> None:
        """Let PyTorch take part."""
        device = self.context.machine.device
        self._enter(name, None, lambda: PlainTraining(device, self.subject, self.data, self.batch_size, **settings))

    def graphed(self, name: str, **settings: Any) -> None:
        """Let the whole step as one graph take part."""
        machine = self.context.machine
        self._enter(name, None, lambda: GraphedTraining(machine, self.subject, self.data, self.batch_size, **settings))

    def bow(self, name: str, learners: int, device: StreamDevice | None = None, **settings: Any) -> None:
        """Let bow take part."""
        where = self.context.machine.device if device is None else device
        make = functools.partial(BowTraining, where, self.subject, self.data, self.batch_size, learners)
        most_rounds = MOST_ROUNDS if not self.context.settings.fake else 2
        self._enter(name, learners, lambda: make(most_rounds=most_rounds, **settings), where)

    def other(self, name: str, learners: int | None, make: Callable[[], Training]) -> None:
        """Let something else take part."""
        self._enter(name, learners, make)

    def peers(self, most_s: float, learners: Mapping[str, int | None]) -> None:
        """Let those of other processes take part that are ready by then."""
        waiting = Allotment(min(most_s, self.context.time.left))
        for name, address in self.context.peers.items():
            try:
                peer = Peer(address, waiting)
            except PeerError as error:
                self.context.note(f"{name}: left out, {error}")
                continue
            self._add(name, learners.get(name), peer)

    def run(self, repeats: int, stint_s: float) -> dict[str, list[float]]:
        """Samples per second by contestant and repeat, each repeat in the other direction.

        Repeats end when the time is over; one is made in any case.
        """
        rates: dict[str, list[float]] = {name: [] for name in self.runners}
        self._turns(rates, 0.0)  # untimed: every capture has emptied the caches of all others
        rates = {name: [] for name in rates}
        for repeat in range(repeats):
            began = time.monotonic()
            self._turns(rates, stint_s, backwards=repeat % 2 == 1)
            self._save(rates)
            if not self.context.time.allows(time.monotonic() - began) and repeat + 1 < repeats:
                self.context.note(f"{repeat + 1} of {repeats} turns, because time ran out")
                break
        return rates

    def again(self, names: Sequence[str], repeats: int, stint_s: float) -> dict[str, list[float]]:
        """Some of them, still warm, alone: samples per second by contestant and repeat."""
        rates: dict[str, list[float]] = {name: [] for name in names}
        for repeat in range(repeats):
            self._turns(rates, stint_s, backwards=repeat % 2 == 1)
        return rates

    def _turns(self, rates: dict[str, list[float]], stint_s: float, backwards: bool = False) -> None:
        names = list(rates)
        for name in reversed(names) if backwards else names:
            try:
                rates[name].append(self.runners[name].turn(stint_s))
            except Exception as error:
                self.context.note(f"{name}: failed in its turn, {first_words(error)}")
                del rates[name]

    def close(self) -> None:
        """Give everything back."""
        for runner in self.runners.values():
            runner.close()
        self.runners.clear()
        self.context.machine.tidy()

    def _enter(
        self, name: str, learners: int | None, make: Callable[[], Training], device: StreamDevice | None = None
    ) -> None:
        # Whoever takes part shall have a turn as well.
        if self.runners and self.context.time.left <= 2 * self.context.settings.stint_s * len(self.runners):
            self.context.note(f"{name}: left out, because time ran out")
            return
        try:
            runner = Contestant(self.context.machine, make, device)
        except Exception as error:
            self.context.note(f"{name}: left out, {first_words(error)}")
            return
        self._add(name, learners, runner)

    def _add(self, name: str, learners: int | None, runner: Runner) -> None:
        self.runners[name] = runner
        about = {"learners": learners, "engine": runner.engine, "first_call_s": round(runner.first_call_s, 2)}
        self.about[name] = about

    def _save(self, rates: Mapping[str, Sequence[float]]) -> None:
        rows = []
        for name, own in rates.items():
            about = self.about[name]
            samples = self.batch_size * (about["learners"] or 1)
            row = {
                "name": name,
                **about,
                "samples_per_s": spread(own, 1),
                "round_ms": spread([1e3 * samples / rate for rate in own], 4),
                "rates": [round(rate, 1) for rate in own],
            }
            rows.append(row)
        self.context.record(model=self.subject.name, batch_size=self.batch_size, contestants=rows)


def spread(values: Sequence[float], digits: int) -> dict[str, Any]:
    """Median, lowest and highest, as plain values."""
    return harness.spread(values, digits)


def gain(rates: Mapping[str, Sequence[float]], name: str, over: str) -> dict[str, Any] | None:
    """How much faster one contestant is than another, repeat by repeat; None where one of them is missing."""
    if not rates.get(name) or not rates.get(over):
        return None
    return spread(ratios(rates[name], rates[over]), 3)
