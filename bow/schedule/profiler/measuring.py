"""Measure every operator of a step on this machine."""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bow.devices import available_cores
from bow.devices.cores import cores_with_two_threads
from bow.errors import SettingError
from bow.forking import begin_to_compute
from bow.graph import StepGraph, capture
from bow.graph.learning_step import Step, StepOutputs
from bow.runtime.loading import is_available
from bow.runtime.local import LocalRuntime, dependencies_of, operators_of
from bow.schedule import Schedule, Timeline
from bow.schedule.profiler.operator_times import OperatorTime, Profile, ProfileCache, hardware, signature
from bow.timing import WARM_UP
from bow.values import whole


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
    _check(threads, interval, cores)
    operators = operators_of(step.graph)
    machine = hardware("native runtime" if is_available() else "Python")
    names = [signature(op, step.graph) for op in operators]
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
    return Profile(
        names=tuple(op.kind for op in operators),
        modules=tuple(op.module for op in operators),
        times=times,
        hardware=machine,
    )


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
            sum(time.repeats for time in group),
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
