"""Who takes part in `python -m benchmarks engines`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from benchmarks.measure import Spread
from benchmarks.workloads import Workload
from bow.engines import EngineName

PLAIN, COMPILED, COMPILED_STEP = "pytorch", "compiled", "compiled_step"
# Everything as it is; forward and backward compiled; the whole step compiled as one function
PYTORCH = (PLAIN, COMPILED, COMPILED_STEP)

EAGER, FUSED, STREAMS, GRAPH, GRAPH_COMPILED = "eager", "fused", "streams", "graph", "graph+compiled"
BOW = (EAGER, FUSED, STREAMS, GRAPH, GRAPH_COMPILED)

RIVALS = (COMPILED, COMPILED_STEP, *BOW)


@dataclass(frozen=True)
class Lane:
    """One contestant of a group."""

    implementation: str  # one of `PYTORCH` or `BOW`
    threads: int  # torch's threads
    learners: int | None  # of bow; None for PyTorch
    first_call_s: float = 0.0  # seconds to make it and to call it once, which compiles
    rates: tuple[float, ...] = ()  # samples per second, one for each repeat

    def __str__(self) -> str:
        """For people."""
        learners = "" if self.learners is None else f" with {counted(self.learners, 'learner')}"
        return f"{self.implementation}{learners} on {counted(self.threads, 'thread')}"

    @property
    def short(self) -> str:
        """For tables."""
        learners = "" if self.learners is None else f", {counted(self.learners, 'learner')}"
        threads = "" if self.threads == 1 else f", {counted(self.threads, 'thread')}"
        return f"{self.implementation}{learners}{threads}"

    @property
    def speed(self) -> Spread:
        """Samples per second."""
        return Spread.of(self.rates)

    @property
    def engine(self) -> EngineName:
        """The engine of bow that runs it."""
        return cast(EngineName, GRAPH if self.implementation == GRAPH_COMPILED else self.implementation)

    @property
    def compiles(self) -> bool:
        """Whether bow is asked to compile the learning task."""
        return self.implementation == GRAPH_COMPILED

    @property
    def expected(self) -> str:
        """How bow describes what runs, where nothing falls back."""
        return f"{self.engine} (compiled)" if self.compiles else self.engine


def line_up(workload: Workload, rivals: Sequence[str], learners: Sequence[int], threads: Sequence[int]) -> list[Lane]:
    """The contestants for a model.

    Whatever has a core for every learner runs with one thread; more threads are for what would leave cores idle.
    """
    return [
        Lane(implementation, count_threads, count)
        for implementation in (PLAIN, *(rival for rival in RIVALS if rival in rivals))
        for count in _numbers_of_learners(implementation, workload)
        if count is None or count in learners
        for count_threads in (threads if _uses_threads(implementation, count) else [min(threads)])
    ]


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _numbers_of_learners(implementation: str, workload: Workload) -> Sequence[int | None]:
    most = max(workload.learners)
    chosen: dict[str, Sequence[int | None]] = {EAGER: (1, most), FUSED: (workload.fused,), STREAMS: (2, most)}
    return (None,) if implementation in PYTORCH else chosen.get(implementation, workload.learners)


def _uses_threads(implementation: str, learners: int | None) -> bool:
    # A compiled region has one thread by design; in `fused`, large operators between regions still use more.
    return implementation in (*PYTORCH, FUSED) or (learners == 1 and implementation != GRAPH_COMPILED)
