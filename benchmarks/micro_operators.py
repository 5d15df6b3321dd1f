"""The operators of `python -m benchmarks micro`, and executors that run nothing else."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from benchmarks.costs.evidence import TABLE_II
from benchmarks.harness import quartiles, take_turns
from bow.runtime.job import ALONE
from bow.runtime.loading import NativeTeam, native

GEMM, PRODUCT = "GEMM", "element-wise product"
FORWARD, BY_FILTER, BY_INPUT = "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"  # As the papers call them

ROWS = 64  # Samples of a batch in Tang et al.'s products

MOST_COPIES = 1000


@dataclass(frozen=True)
class Call:
    """An ATen operator on tensors of its own."""

    kind: str  # what the papers call it
    size: str  # of what it reads, for people
    name: str  # such as `aten::mm`
    overload: str  # such as `Tensor`
    arguments: tuple[Any, ...]  # tensors and whatever else
    makes: tuple[int, int]  # which of its results is used, and of how many
    flops: float  # additions and multiplications

    @property
    def title(self) -> str:
        """Its name, for people."""
        return f"{self.kind} {self.size}"


Make: TypeAlias = Callable[[], Call]  # Makes a call; every one has tensors of its own


def gemm(hidden: int) -> Call:
    """The product of a batch with the weights of so many units (Tang et al., Figure 2: 512)."""
    left, right = torch.randn(ROWS, hidden), torch.randn(hidden, hidden)
    size = f"[{ROWS}, {hidden}] x [{hidden}, {hidden}]"
    return Call(GEMM, size, "aten::mm", "", (left, right), (0, 1), 2.0 * ROWS * hidden**2)


def product(hidden: int) -> Call:
    """The product, element by element, of a batch of so many units with another (Tang et al., Figure 2: 512)."""
    left, right = torch.randn(2, ROWS, hidden)
    return Call(PRODUCT, f"{left.numel():,}", "aten::mul", "Tensor", (left, right), (0, 1), float(left.numel()))


def convolution(kind: str, samples: int, pixels: int, channels: int) -> Call:
    """A line of Liu et al.'s Table II with other samples.

    The paper does not name the filters: here 1x1, with as many maps as channels, as in `evidence`.
    """
    images = torch.randn(samples, channels, pixels, pixels)
    filters = torch.randn(channels, channels, 1, 1)
    settings = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    flops = 2.0 * samples * pixels**2 * channels**2
    size = f"({samples},{pixels},{pixels},{channels})"
    if kind == FORWARD:
        arguments: tuple[Any, ...] = (images, filters, None, *settings)
        return Call(kind, size, "aten::convolution", "", arguments, (0, 1), flops)
    used = {BY_INPUT: 0, BY_FILTER: 1}[kind]
    mask = [number == used for number in range(3)]
    arguments = (torch.randn_like(images), images, filters, None, *settings, mask)
    return Call(kind, size, "aten::convolution_backward", "", arguments, (used, 3), flops)


def convolutions(samples: int) -> list[Make]:
    """The nine lines of Table II."""
    return [functools.partial(convolution, row.kind, samples, row.size, row.channels) for row in TABLE_II]


@dataclass(frozen=True)
class Seat:
    """An executor."""

    cores: tuple[int, ...]  # those that its threads keep to; none: wherever the system puts them
    threads: int  # of each of its operators


@dataclass(frozen=True)
class Ran:
    """What executors have done."""

    makespan_s: float  # seconds from the first start to the last end
    busy_s: tuple[float, ...]  # by executor: seconds in operators


class Probe:
    """Executors that each run some operators one after another, all at once."""

    def __init__(self, lanes: Sequence[Sequence[Call]], seats: Sequence[Seat]) -> None:
        self._tensors: list[Tensor] = []
        calls = [call for lane in lanes for call in lane]
        slots = sum(len(_tensors_of(call)) + 1 for call in calls)
        self._job = native().Job(slots)
        self._slot = 0
        order = [[self._add(call) for call in lane] for lane in lanes]
        self._job.schedule(order, [], len(lanes))
        self._team: NativeTeam = native().Team([list(seat.cores) for seat in seats], [seat.threads for seat in seats])

    def run(self) -> Ran:
        """Run all operators once."""
        self._job.run(self._team, True)
        spans = self._job.spans()
        starts, ends = [start for _, _, start, _ in spans], [end for _, _, _, end in spans]
        busy = [0] * len(self._team)
        for lane, _, start, end in spans:
            busy[lane] += end - start
        return Ran((max(ends) - min(starts)) / 1e9, tuple(nanoseconds / 1e9 for nanoseconds in busy))

    def close(self) -> None:
        """End the executors' threads; the next run starts them again."""
        self._team.close()

    def _add(self, call: Call) -> int:
        arguments = [self._bound(each) if isinstance(each, Tensor) else each for each in call.arguments]
        used, count = call.makes
        makes = [self._next() if number == used else ALONE for number in range(count)]
        node: int = self._job.add_operator(call.name, call.overload, arguments, {}, makes)
        return node

    def _bound(self, tensor: Tensor) -> Any:
        slot = self._next()
        self._job.bind(slot, tensor)
        return native().Slot(slot)

    def _next(self) -> int:
        self._slot += 1
        return self._slot - 1


def sample(probes: Mapping[str, Probe], turns: int) -> dict[str, list[Ran]]:
    """Let probes take turns, every other time in reverse order, each behind a run that does not count."""

    def turn(probe: Probe) -> Ran:
        probe.run()
        ran = probe.run()
        probe.close()
        return ran

    return take_turns({name: functools.partial(turn, probe) for name, probe in probes.items()}, turns)


def copies(make: Make, seat: Seat, stint_s: float) -> int:
    """How many of an operator fill a time on an executor."""
    probe = Probe([[make()] * 3], [seat])
    probe.run()
    once_s = probe.run().makespan_s / 3
    probe.close()
    return max(1, min(MOST_COPIES, round(stint_s / max(once_s, 1e-9))))


def makespans(runs: Sequence[Ran]) -> list[float]:
    """Seconds, run by run."""
    return [run.makespan_s for run in runs]


def quartiles_us(seconds: Sequence[float], each: int = 1) -> dict[str, Any]:
    """Microseconds of one of several."""
    return quartiles(seconds, 2, scale=1e6 / each)


def _tensors_of(call: Call) -> list[Tensor]:
    return [each for each in call.arguments if isinstance(each, Tensor)]
