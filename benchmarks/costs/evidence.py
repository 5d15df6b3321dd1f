"""Measurements of the two papers on a Xeon Phi, and the deviation of `Saturation` from them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.costs.machine import Saturation, Sort, Threads, Work

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Convolution:
    """A row of Liu et al.'s Table II; the first one of each operator is that of Figure 1.

    Attributes:
        kind: the operator.
        size: height and width of the images, of which there are 32.
        channels: of the images.
        time_s: with the best number of threads; the paper gives seconds of a thousand runs.
        threads: the best number.
        variance: relative excess time with 68 threads.
    """

    kind: str
    size: int
    channels: int
    time_s: float
    threads: int
    variance: float

    @property
    def work(self) -> Work:
        """Its work; the paper does not specify the filters: here 1x1, with as many maps as channels."""
        pixels = 32 * self.size**2
        numbers = 2 * pixels * self.channels + self.channels**2
        return Work(self.kind, 2.0 * pixels * self.channels**2, float(FLOAT_BYTES * numbers))


TABLE_II = (
    Convolution("Conv2DBackpropFilter", 8, 384, 7.2e-3, 26, 0.173),
    Convolution("Conv2DBackpropFilter", 17, 384, 11.1e-3, 42, 0.102),
    Convolution("Conv2DBackpropFilter", 8, 2048, 20.3e-3, 68, 0.0),
    Convolution("Conv2DBackpropInput", 8, 384, 5.8e-3, 36, 0.098),
    Convolution("Conv2DBackpropInput", 17, 384, 8.7e-3, 56, 0.023),
    Convolution("Conv2DBackpropInput", 8, 2048, 19.6e-3, 68, 0.0),
    Convolution("Conv2D", 8, 384, 4.7e-3, 45, 0.111),
    Convolution("Conv2D", 17, 384, 7.4e-3, 63, 0.035),
    Convolution("Conv2D", 8, 2048, 14.8e-3, 66, 0.020),
)


HALVED = {"Conv2DBackpropFilter": 0.25, "Conv2DBackpropInput": 0.17}
"""Relative excess time of the largest ones with 34 threads over 68 (Liu et al., with Table III)."""


STANDALONE_S: Mapping[Sort, float] = {"weight gradient": 6.2e-3, "input gradient": 4.3e-3, "convolution": 3.4e-3}
"""Constant seconds per run in Table II, independent of the threads; fitted together with `STANDALONE_BYTES_PER_S`.

The nine times cannot be explained without: from the first row to the third the work grows 28 times, and with 2.6 times
the threads the time grows 3 times. The paper does not say whether these milliseconds belong to the operator or to
running it standalone. The latter is assumed, because in Table VI all 53 `Conv2D` of a step of ResNet-50 take 49 ms
together, 0.9 ms each, and the two gradients 3.0 and 1.4 ms.
"""


STANDALONE_BYTES_PER_S = 17e9


SATURATION = {
    "GEMM [64, 512] x [512, 512]": (Work("aten.mm.default", 2.0 * 64 * 512 * 512, 4.0 * (2 * 64 * 512 + 512**2)), 8),
    "multiplication of 32,768 pairs": (Work("aten.mul.Tensor", 32_768.0, 4.0 * 3 * 32_768), 16),
}
"""Tang et al., Figure 2: operators, and the threads at which their performance saturates."""


SIDE_BY_SIDE = 6.0
"""Tang et al., section 3.2: many concurrent small operators reach over this multiple of one operator's best rate."""


GAIN = 1.1
"""Performance is saturated if doubling the threads gains less than this."""


@dataclass(frozen=True)
class Comparison:
    """A number of a paper, and that of the model.

    Attributes:
        source: section or figure of the paper.
        what: the quantity.
        unit: of both numbers.
        paper: the paper's number.
        model: the model's number.
        at_least: whether the paper's number is a lower bound.
    """

    source: str
    what: str
    unit: str
    paper: float
    model: float
    at_least: bool = False

    @property
    def miss(self) -> float:
        """Deviation of the model: relative to the paper's number, or in percentage points for percentages."""
        if self.at_least and self.model >= self.paper:
            return 0.0
        return self.model - self.paper if self.unit == "%" else self.model / self.paper - 1


def standalone(machine: Saturation) -> Saturation:
    """The machine as in Table II, where every operator was run standalone."""
    scalings = {
        sort: replace(scaling, serial_s=STANDALONE_S.get(sort, scaling.serial_s))
        for sort, scaling in machine.scalings.items()
    }
    return replace(machine, scalings=scalings, copy_bytes_per_s=STANDALONE_BYTES_PER_S)


def compare(machine: Saturation) -> list[Comparison]:
    """Compare all statements of the papers on single operators with a machine without noise.

    Example:
        >>> first = compare(Saturation())[0]
        >>> first.what, first.paper, first.model
        ('GEMM [64, 512] x [512, 512]: saturates at', 8, 8)

    References:
        Tang et al., 2018, Figures 2 and 3. Liu et al., 2019, Tables II and III, Figure 1.
    """
    return [*_saturation(machine), *_variances(standalone(machine))]


def saturates_at(machine: Saturation, work: Work) -> int:
    """The fewest threads, of 1, 2, 4, ..., for which doubling gains less than `GAIN` times the performance."""
    ends = (n for n in _powers(machine) if _rate(machine, work, 2 * n) < GAIN * _rate(machine, work, n))
    return next(ends)


def best_threads(machine: Saturation, work: Work) -> int:
    """The number of threads, two per cache, with the shortest time of an operator: as in Figure 1."""
    return min(range(2, machine.cores + 1, 2), key=lambda threads: _time_s(machine, work, threads))


def _saturation(machine: Saturation) -> Iterator[Comparison]:
    for name, (work, threads) in SATURATION.items():
        yield Comparison("Tang, Figure 2", f"{name}: saturates at", "threads", threads, saturates_at(machine, work))
        alone = max(_rate(machine, work, count) for count in _powers(machine))
        together = max(machine.cores // count * _rate(machine, work, count) for count in _powers(machine))
        gain = together / alone
        yield Comparison("Tang, Figure 3", f"{name}: side by side over one", "x", SIDE_BY_SIDE, gain, at_least=True)


def _variances(machine: Saturation) -> Iterator[Comparison]:
    for row in TABLE_II:
        best, all_cores = best_threads(machine, row.work), machine.cores
        best_s, all_s = _time_s(machine, row.work, best), _time_s(machine, row.work, all_cores)
        name, source = f"{row.kind} (32,{row.size},{row.size},{row.channels})", "Liu, Table II"
        longer = 100 * (all_s / best_s - 1)
        yield Comparison(source, f"{name}: best", "threads", row.threads, best)
        yield Comparison(source, f"{name}: longer with all cores", "%", 100 * row.variance, longer)
        yield Comparison(source, f"{name}: time", "ms", 1e3 * row.time_s, 1e3 * best_s)
        if row.threads == all_cores:
            longer = 100 * (_time_s(machine, row.work, all_cores // 2) / all_s - 1)
            named = f"{name}: longer with half of the cores"
            yield Comparison("Liu, Table III", named, "%", 100 * HALVED[row.kind], longer)


def _powers(machine: Saturation) -> list[int]:
    return [2**power for power in range(machine.cores.bit_length())]


def _rate(machine: Saturation, work: Work, threads: int) -> float:
    """Runs per second; 0 if the machine has too few cores."""
    return 1 / _time_s(machine, work, threads) if threads <= machine.cores else 0.0


def _time_s(machine: Saturation, work: Work, threads: int) -> float:
    return machine.time_s(work.flops, work.bytes_moved, work.kind, Threads(threads, shared=threads > 1))
