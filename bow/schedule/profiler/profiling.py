"""Measures every operator of a step on this machine."""

import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor, nn

from bow.devices import available_cores
from bow.errors import SettingError
from bow.forking import begin_to_compute
from bow.graph.learning_step import Step
from bow.runtime import is_available
from bow.runtime.issue import operators_of
from bow.schedule import Schedule, Timeline
from bow.schedule.profiler.cache import Cache, hardware, signature
from bow.schedule.profiler.profile import OperatorTime, Profile
from bow.schedule.profiler.subject import Subject
from bow.schedule.profiler.turns import WARM_UP
from bow.values import whole

REPEATS = 20


def profile(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    step: Step | None = None,
    threads: Sequence[int] | None = None,
    repeats: int = REPEATS,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure what every operator of a model's training step takes on this machine, by number of threads.

    The step runs as it does in training, one operator after another on pinned executors, and every operator's start
    and end are recorded: that is how Graphi and Liu et al. profile too. Nothing of the model changes.

    Args:
        model: as in `bow.capture`.
        batch: likewise.
        loss: likewise.
        step: likewise.
        threads: numbers of threads to measure; None: 1, 2, 4, ... and as many as there are cores.
        repeats: steps that are measured for each, behind some that warm up.
        cache: whether times that were measured before on this machine, with these versions and as many repeats, are
            good enough. A step is measured again as soon as one of its operators is new.
        progress: is told what is being measured.

    Raises:
        CaptureError, LossError, ModelError, DataError: as `bow.capture` does.
        SettingError: a number of threads or repeats below 1, or more threads than cores.

    Example:
        >>> import torch
        >>> batch = torch.randn(4, 3), torch.randn(4, 1)
        >>> mse = torch.nn.functional.mse_loss
        >>> found = profile(torch.nn.Linear(3, 1), batch, mse, threads=[1], repeats=2, cache=False)
        >>> found.threads, found.names[1]
        ((1,), 'aten.addmm.default')

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.2.
    """
    begin_to_compute("bow.profile")
    subject = Subject.of(model, batch, loss, step=step)
    return measure(subject, threads=threads, repeats=repeats, cache=cache, progress=progress)


def measure(
    subject: Subject,
    *,
    threads: Sequence[int] | None = None,
    repeats: int = REPEATS,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure a step that was captured before; the arguments are those of `profile`."""
    _check(threads, repeats)
    wanted = sorted(set(numbers_of_threads(len(available_cores())) if threads is None else threads))
    operators = operators_of(subject.graph)
    machine = hardware("native runtime" if is_available() else "Python")
    names = [signature(op, subject.graph) for op in operators]
    store = Cache(machine)
    known = {key: time for key, time in store.read().items() if time.repeats >= repeats} if cache else {}
    times: dict[int, tuple[OperatorTime, ...]] = {}
    for number in wanted:
        if all((name, number) in known for name in names):
            times[number] = tuple(known[name, number] for name in names)
            continue
        if progress is not None:
            progress(f"{len(names)} operators with {number} {'thread' if number == 1 else 'threads'}")
        times[number] = _measured(subject, Schedule.sequential(len(names), number), repeats)
        store.write(_by_signature(names, number, times[number]))
    return Profile(
        names=tuple(op.kind for op in operators),
        modules=tuple(op.module for op in operators),
        times=times,
        hardware=machine,
    )


def under(subject: Subject, schedule: Schedule, repeats: int = REPEATS) -> tuple[list[int], Timeline]:
    """What operators take when a schedule runs them, side by side with others; Graphi's second measurement.

    Args:
        subject: the step.
        schedule: of its operators.
        repeats: steps that are measured.

    Returns:
        By operator: the median in nanoseconds; and the timeline of the step that took the median time.
    """
    durations, timeline = _recorded(subject, schedule, repeats)
    return [round(statistics.median(own)) for own in durations], timeline


def numbers_of_threads(cores: int) -> list[int]:
    """1, 2, 4, ... and as many as there are cores.

    Example:
        >>> numbers_of_threads(6)
        [1, 2, 4, 6]
    """
    return sorted({*(2**power for power in range(cores.bit_length()) if 2**power <= cores), cores})


def _measured(subject: Subject, schedule: Schedule, repeats: int) -> tuple[OperatorTime, ...]:
    durations, _ = _recorded(subject, schedule, repeats)
    return tuple(OperatorTime.of([nanoseconds / 1e9 for nanoseconds in own]) for own in durations)


def _recorded(subject: Subject, schedule: Schedule, repeats: int) -> tuple[list[list[int]], Timeline]:
    """By operator: nanoseconds in each of some steps; and the timeline of the one that took the median time."""
    durations: list[list[int]] = [[] for _ in range(subject.num_operators)]
    timelines: list[Timeline] = []
    with subject.runtime(schedule) as runtime:
        for _ in range(WARM_UP):
            subject.run(runtime)
        for _ in range(repeats):
            subject.run(runtime, record=True)
            assert runtime.timeline is not None
            timelines.append(runtime.timeline)
            for span in runtime.timeline.spans:
                durations[int(span.details["operator"])].append(span.duration_ns)
    return durations, sorted(timelines, key=lambda timeline: timeline.makespan)[(repeats - 1) // 2]


def _by_signature(
    names: Sequence[str], threads: int, times: Sequence[OperatorTime]
) -> dict[tuple[str, int], OperatorTime]:
    """Operators of one signature have one time in the cache: the median of theirs."""
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


def _check(threads: object, repeats: object) -> None:
    cores = len(available_cores())
    whole("repeats", repeats)
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
