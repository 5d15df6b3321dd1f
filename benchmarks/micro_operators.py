"""The operators of `python -m benchmarks micro`, and executors that run only these."""

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
FORWARD, BY_FILTER, BY_INPUT = "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"  # the names in the papers

ROWS = 64  # batch size of Tang et al.'s products

MOST_COPIES = 1000


@dataclass(frozen=True)
class Call:
    """An ATen operator with its own tensors."""

    kind: str  # name in the papers
    size: str  # input size, for display
    name: str  # `aten::mm`, for example
    overload: str  # `Tensor`, for example
    arguments: tuple[Any, ...]  # tensors and other arguments
    makes: tuple[int, int]  # index of the result that is used, and number of results
    flops: float  # additions and multiplications

    @property
    def title(self) -> str:
        return f"{self.kind} {self.size}"


Make: TypeAlias = Callable[[], Call]  # creates a call with its own tensors


def gemm(hidden: int) -> Call:
    """The matrix product of a batch with `hidden` x `hidden` weights (Tang et al., Figure 2: 512)."""
    left, right = torch.randn(ROWS, hidden), torch.randn(hidden, hidden)
    size = f"[{ROWS}, {hidden}] x [{hidden}, {hidden}]"
    return Call(GEMM, size, "aten::mm", "", (left, right), (0, 1), 2.0 * ROWS * hidden**2)


def product(hidden: int) -> Call:
    """The element-wise product of two batches with `hidden` units (Tang et al., Figure 2: 512)."""
    left, right = torch.randn(2, ROWS, hidden)
    return Call(PRODUCT, f"{left.numel():,}", "aten::mul", "Tensor", (left, right), (0, 1), float(left.numel()))


def convolution(kind: str, samples: int, pixels: int, channels: int) -> Call:
    """A row of Liu et al.'s Table II with another number of samples.

    The paper does not specify the filters: here 1x1, with as many maps as channels, as in `evidence`.
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
    """The nine rows of Table II."""
    return [functools.partial(convolution, row.kind, samples, row.size, row.channels) for row in TABLE_II]


@dataclass(frozen=True)
class Seat:
    """An executor."""

    cores: tuple[int, ...]  # cores of its threads; empty: not pinned
    threads: int  # threads per operator


@dataclass(frozen=True)
class Ran:
    """Timings of a run."""

    makespan_s: float  # from the first start to the last end
    busy_s: tuple[float, ...]  # by executor: time in operators


class Probe:
    """Concurrent executors that each run a sequence of operators."""

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
        self._job.run(self._team, True)
        spans = self._job.spans()
        starts, ends = [start for _, _, start, _ in spans], [end for _, _, _, end in spans]
        busy = [0] * len(self._team)
        for lane, _, start, end in spans:
            busy[lane] += end - start
        return Ran((max(ends) - min(starts)) / 1e9, tuple(nanoseconds / 1e9 for nanoseconds in busy))

    def close(self) -> None:
        """Stop the executors' threads; the next run restarts them."""
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
    """Measure probes in turns, every other turn in reverse order, each after a warm-up run."""

    def turn(probe: Probe) -> Ran:
        probe.run()
        ran = probe.run()
        probe.close()
        return ran

    return take_turns({name: functools.partial(turn, probe) for name, probe in probes.items()}, turns)


def copies(make: Make, seat: Seat, stint_s: float) -> int:
    """How many calls of an operator take `stint_s` seconds on an executor."""
    probe = Probe([[make()] * 3], [seat])
    probe.run()
    once_s = probe.run().makespan_s / 3
    probe.close()
    return max(1, min(MOST_COPIES, round(stint_s / max(once_s, 1e-9))))


def makespans(runs: Sequence[Ran]) -> list[float]:
    return [run.makespan_s for run in runs]


def quartiles_us(seconds: Sequence[float], each: int = 1) -> dict[str, Any]:
    """Quartiles in microseconds per call."""
    return quartiles(seconds, 2, scale=1e6 / each)


def _tensors_of(call: Call) -> list[Tensor]:
    return [each for each in call.arguments if isinstance(each, Tensor)]
