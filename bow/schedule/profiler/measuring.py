"""Measure every operator of a step on this machine; operator times by number of threads, and their cache on disk."""

import contextlib
import math
import os
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bow.compiling import cache_folder
from bow.devices import available_cores, processor
from bow.devices.cores import cores_with_two_threads
from bow.errors import ScheduleError, SettingError
from bow.files import JsonCache, JsonFormat
from bow.forking import begin_to_compute
from bow.graph import Operator, StepGraph, capture
from bow.graph.learning_step import Step, StepOutputs
from bow.graph.operator import Ref, map_refs
from bow.runtime.loading import is_available, machine
from bow.runtime.local import LocalRuntime, dependencies_of, operators_of
from bow.schedule import Schedule, Timeline
from bow.timing import WARM_UP
from bow.values import whole

FORMAT = JsonFormat(
    "bow profile",
    version=1,
    subject="the profile",
    writer="Profile.to_json",
    remedy="measure again",
    refusal=ScheduleError,
)


@dataclass(frozen=True)
class OperatorTime:
    """Measured time of an operator."""

    median_s: float
    spread_s: float  # interquartile range
    repeats: int  # number of measurements

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "OperatorTime":
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else (0.0, 0.0, 0.0)
        return cls(statistics.median(seconds), high - low, len(seconds))

    @classmethod
    def read(cls, median_s: Any, spread_s: Any, repeats: Any) -> "OperatorTime":
        """Parse and validate a stored time."""
        numbers = float(median_s), float(spread_s), float(repeats)
        if not (all(map(math.isfinite, numbers)) and min(numbers) >= 0 and numbers[2] >= 1):
            raise ValueError(f"{numbers} are not a valid measurement")
        return cls(numbers[0], numbers[1], int(repeats))


@dataclass(frozen=True)
class Profile:
    """Times of all operators of a step graph on one machine."""

    names: tuple[str, ...]  # by operator, such as `aten.mm.default`
    modules: tuple[str, ...]  # by operator: its module
    times: Mapping[int, tuple[OperatorTime, ...]]  # by number of threads, then by operator
    hardware: str  # machine and versions

    def __post_init__(self) -> None:
        for count in map(len, (self.modules, *self.times.values())):
            if count != len(self.names):
                raise ScheduleError(
                    f"the profile has {len(self.names)} operators but modules or times for {count}; measure again"
                )

    @classmethod
    def of(cls, graph: StepGraph, times: Mapping[int, tuple[OperatorTime, ...]], hardware: str) -> "Profile":
        operators = operators_of(graph)
        names, modules = (tuple(getattr(each, name) for each in operators) for name in ("kind", "module"))
        return cls(names, modules, times, hardware)

    @property
    def step_s(self) -> dict[int, float]:
        """By number of threads: seconds of all operators, one after another."""
        return {threads: sum(time.median_s for time in self.times[threads]) for threads in self.threads}

    @property
    def threads(self) -> tuple[int, ...]:
        """The measured numbers of threads, ascending."""
        return tuple(sorted(self.times))

    def nanoseconds(self, threads: int) -> list[int]:
        """By operator: time with this many threads, or with the next lower measured number."""
        measured = [count for count in self.threads if count <= threads]
        if not measured:
            raise ScheduleError(
                f"the profile has no times for {threads} threads or fewer, only for {self._listed()}; measure again"
            )
        return [round(time.median_s * 1e9) for time in self.times[measured[-1]]]

    def curves(self) -> list[dict[int, int]]:
        """By operator: nanoseconds by number of threads."""
        return [
            {threads: round(self.times[threads][index].median_s * 1e9) for threads in self.threads}
            for index in range(len(self.names))
        ]

    def longest(self, count: int, threads: int) -> list[int]:
        times = self.nanoseconds(threads)
        return sorted(range(len(times)), key=lambda index: (-times[index], index))[:count]

    def to_json(self) -> str:
        return FORMAT.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        return FORMAT.loads(
            text,
            lambda read: cls(
                tuple(map(str, read["names"])),
                tuple(map(str, read["modules"])),
                {int(n): tuple(OperatorTime.read(**time) for time in own) for n, own in read["times"].items()},
                str(read["hardware"]),
            ),
        )

    def _listed(self) -> str:
        return ", ".join(map(str, self.threads)) or "none"


def hardware(runtime: str) -> str:
    """Describe what times depend on besides operators."""
    # Cores are listed by number, because two hardware threads of one core are not two cores.
    cores = ",".join(map(str, available_cores()))
    waiting = os.environ.get("OMP_WAIT_POLICY", "by default").lower()
    precision = torch.get_float32_matmul_precision()
    settings = f"threads wait {waiting}, matmul {precision}, oneDNN {torch.backends.mkldnn.enabled}"
    return f"{processor()}, cores {cores}, torch {torch.__version__}, {settings}, {runtime}"


def signature(operator: Operator, graph: StepGraph) -> str:
    """Describe what an operator's time depends on: its kind, its inputs' shapes and layouts, its other arguments."""

    def described(ref: Ref) -> str:
        spec = graph.values[ref.value]
        return f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}{list(spec.strides)}"

    arguments = map_refs(described, operator.arguments)
    keywords = {name: map_refs(described, value) for name, value in sorted(operator.keywords.items())}
    return f"{operator.kind} {arguments} {keywords}"


class ProfileCache:
    """Times by (signature, threads), one file per machine and settings (see `hardware`)."""

    def __init__(self, hardware: str, folder: Path | None = None) -> None:
        self._cache = JsonCache(folder or cache_folder() / "profiles")
        self._hardware = [hardware, machine()]

    def read(self) -> dict[tuple[str, int], OperatorTime]:
        """Return all cached times; a damaged file counts as empty."""
        return self._cache.find(self._hardware, _read_times) or {}

    def write(self, times: Mapping[tuple[str, int], OperatorTime]) -> None:
        """Merge times into the file; errors are ignored, the times are then measured again."""
        merged = {**self.read(), **times}
        rows = [[name, n, time.median_s, time.spread_s, time.repeats] for (name, n), time in sorted(merged.items())]
        with contextlib.suppress(OSError):
            self._cache.store(self._hardware, rows)


def _read_times(rows: Any) -> dict[tuple[str, int], OperatorTime]:
    return {(str(name), int(threads)): OperatorTime.read(*time) for name, threads, *time in rows}


@dataclass(frozen=True)
class BoundStep:
    """One learner's step, bound to tensors and a batch, ready to run."""

    graph: StepGraph
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    batch: Any  # with the structure and shapes that the graph was captured with

    @classmethod
    def of(
        cls,
        model: nn.Module,
        batch: Any,
        loss: Callable[[Any, Any], Tensor] | None = None,
        *,
        step: Step | None = None,
    ) -> "BoundStep":
        """Capture a model's step; the arguments are those of `bow.capture`."""
        graph = capture(model, batch, loss, step=step)
        plain: nn.Module = getattr(model, "_orig_mod", model)  # torch.compile's wrapped module, as in `capture`
        parameters = {name: tensor.detach() for name, tensor in plain.named_parameters(remove_duplicate=False)}
        return cls(graph, parameters, dict(plain.named_buffers(remove_duplicate=False)), batch)

    @property
    def num_operators(self) -> int:
        return len(operators_of(self.graph))

    @property
    def kinds(self) -> list[str]:
        """By operator: its kind, such as `aten.mm.default`."""
        return [operator.kind for operator in operators_of(self.graph)]

    @property
    def dependencies(self) -> list[frozenset[int]]:
        """By operator: those whose results it reads."""
        return dependencies_of(operators_of(self.graph))

    def run(self, runtime: LocalRuntime, *, seed: int = 0, record: bool = False) -> StepOutputs:
        return runtime.run(self.parameters, self.buffers, self.batch, seed=seed, record=record)


class ScheduledStep:
    """A step on executors that follow a schedule, to be timed."""

    def __init__(self, step: BoundStep, schedule: Schedule, cores: Sequence[Sequence[int]] | None = None) -> None:
        self._step = step
        self._runtime = LocalRuntime(step.graph, schedule, cores=cores)

    def run(self) -> StepOutputs:
        return self._step.run(self._runtime)

    def rest(self) -> None:
        """Stop the executors' threads; the next run restarts them."""
        self._runtime.close()


REPEATS = 20


def profile(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    step: Step | None = None,
    threads: Sequence[int] | None = None,
    interval: int | None = None,
    repeats: int = REPEATS,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure the time of every operator of a model's training step on this machine, by number of threads.

    The step runs as in training, one operator after another on pinned executors, and every operator's start and end are
    recorded, as in Graphi and Liu et al. The model is not changed.

    Args:
        model: as in `bow.capture`.
        batch: likewise.
        loss: likewise.
        step: likewise.
        threads: numbers of threads to measure; None: 1, 2, 4, ... and the number of cores.
        interval: instead of `threads`: add this many threads at a time, starting at one, until no operator gets faster
            (hill climbing, Liu et al.).
        repeats: steps measured for each number of threads, after some warm-up steps.
        cache: reuse earlier times from this machine with these versions and at least as many repeats. The step is
            measured again if any of its operators is new.
        progress: called with a description of each measurement.

    Raises:
        CaptureError, LossError, ModelError, DataError: as `bow.capture` does.
        SettingError: a number of threads or repeats below 1, more threads than cores, or `threads` and `interval`.

    Example:
        >>> import torch
        >>> batch = torch.randn(4, 3), torch.randn(4, 1)
        >>> mse = torch.nn.functional.mse_loss
        >>> found = profile(torch.nn.Linear(3, 1), batch, mse, threads=[1], repeats=2, cache=False)
        >>> found.threads, found.names[1]
        ((1,), 'aten.addmm.default')

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.2.
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-C.
    """
    begin_to_compute("bow.profile")
    bound = BoundStep.of(model, batch, loss, step=step)
    return measure(bound, threads=threads, interval=interval, repeats=repeats, cache=cache, progress=progress)


def measure(
    step: BoundStep,
    *,
    threads: Sequence[int] | None = None,
    interval: int | None = None,
    repeats: int = REPEATS,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure a captured step; the arguments are those of `profile`."""
    cores = len(available_cores())
    whole("repeats", repeats)
    if progress is not None and not callable(progress):
        raise SettingError(f"progress must be a function of a text, got {progress!r}; leave it out for none")
    _check(threads, interval, cores)
    machine = hardware("native runtime" if is_available() else "Python")
    names = [signature(each, step.graph) for each in operators_of(step.graph)]
    store = ProfileCache(machine)
    known = {key: time for key, time in store.read().items() if time.repeats >= repeats} if cache else {}

    def with_threads(number: int) -> tuple[OperatorTime, ...]:
        if all((name, number) in known for name in names):
            return tuple(known[name, number] for name in names)
        if progress is not None:
            progress(f"{len(names)} operators with {number} {'thread' if number == 1 else 'threads'}")
        times = _measured(step, Schedule.sequential(len(names), number), repeats)
        store.write(_by_signature(names, number, times))
        return times

    if interval is not None:
        times = _climb(with_threads, cores, interval)
    else:
        times = {number: with_threads(number) for number in sorted(set(threads or numbers_of_threads(cores)))}
    return Profile.of(step.graph, times, machine)


def measure_schedule(step: BoundStep, schedule: Schedule, repeats: int = REPEATS) -> tuple[list[int], Timeline]:
    """Return the operators' median nanoseconds under a schedule, and the timeline of the median step."""
    durations, timeline = _recorded(step, schedule, repeats)
    return [round(statistics.median(own)) for own in durations], timeline


def numbers_of_threads(cores: int) -> list[int]:
    """Return 1, 2, 4, ..., the number of cores, and of physical cores if these are fewer."""
    physical = cores_with_two_threads()
    all_of_them = {cores, physical} if 0 < physical < cores else {cores}
    return sorted(all_of_them | {2**power for power in range(cores.bit_length()) if 2**power <= cores})


def _climb(
    with_threads: Callable[[int], tuple[OperatorTime, ...]], cores: int, interval: int
) -> dict[int, tuple[OperatorTime, ...]]:
    """Measure more threads until no operator gets faster (Liu et al., 2019, section III-C); all run."""
    counts = [*range(1, cores + 1, interval)]
    times: dict[int, tuple[OperatorTime, ...]] = {}
    last: dict[int, float] = {}  # seconds by operator that still gets faster; an equal time does not end its climb
    for number in counts if len(counts) == 1 else [*counts[:-1], cores]:
        times[number] = with_threads(number)
        seconds = {index: time.median_s for index, time in enumerate(times[number])}
        last = {each: seconds[each] for each, before in last.items() if seconds[each] <= before} if last else seconds
        if not last:
            break
    return times


def _measured(step: BoundStep, schedule: Schedule, repeats: int) -> tuple[OperatorTime, ...]:
    durations, _ = _recorded(step, schedule, repeats)
    return tuple(OperatorTime.of([nanoseconds / 1e9 for nanoseconds in own]) for own in durations)


def _recorded(step: BoundStep, schedule: Schedule, repeats: int) -> tuple[list[list[int]], Timeline]:
    """Return by operator the nanoseconds of each step, and the timeline of the step with the median time."""
    durations: list[list[int]] = [[] for _ in range(step.num_operators)]
    timelines: list[Timeline] = []
    with LocalRuntime(step.graph, schedule) as runtime:
        for _ in range(WARM_UP):
            step.run(runtime)
        for _ in range(repeats):
            step.run(runtime, record=True)
            assert runtime.timeline is not None
            timelines.append(runtime.timeline)
            for span in runtime.timeline.spans:
                durations[int(span.details["operator"])].append(span.duration_ns)
    return durations, sorted(timelines, key=lambda timeline: timeline.makespan)[(repeats - 1) // 2]


def _by_signature(
    names: Sequence[str], threads: int, times: Sequence[OperatorTime]
) -> dict[tuple[str, int], OperatorTime]:
    """Return one time per signature for the cache: the median over its operators."""
    groups: dict[str, list[OperatorTime]] = {}
    for name, time in zip(names, times, strict=True):
        groups.setdefault(name, []).append(time)
    return {
        (name, threads): OperatorTime(
            statistics.median(time.median_s for time in group),
            statistics.median(time.spread_s for time in group),
            min(time.repeats for time in group),
        )
        for name, group in groups.items()
    }


def _check(threads: object, interval: object, cores: int) -> None:
    if interval is not None:
        whole("interval", interval, most=cores)
        if threads is not None:
            raise SettingError("threads and interval both say which numbers of threads are measured; leave one out")
    if threads is None:
        return
    if not isinstance(threads, Collection) or isinstance(threads, str):
        raise SettingError(f"threads must be a list of numbers, such as [1, 2], got {threads!r}")
    if not len(threads):
        raise SettingError("threads must have at least one number, got none; leave it out for all that are useful")
    for number in threads:
        if not isinstance(number, int) or not 1 <= number <= cores:
            raise SettingError(
                f"threads must be whole numbers between 1 and the {cores} cores of this machine, got {number!r}"
            )
