"""The schedule of a training: which executors or streams run the operators of a learning task."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch

from bow.data import Batch
from bow.devices import StreamDevice, available_cores, cuda_device
from bow.engines.captured import with_autocast
from bow.engines.config import Engine
from bow.engines.memory import is_cpu
from bow.errors import BowError, ScheduleError, SettingError, reason
from bow.files import read_text
from bow.schedule import OrderedSchedule, Schedule
from bow.schedule.profiler import BoundStep, Comparison, Policy, compare, make_policies
from bow.schedule.profiler.device import bind_on, device_policies, measure_on
from bow.schedule.profiler.measuring import measure, numbers_of_threads
from bow.schedule.schedule import FORMAT
from bow.schedule.scheduler import CriticalPath, critical_path
from bow.timing import time_in_turns
from bow.training.checks import check_schedule
from bow.training.replicas import ReplicasConfig
from bow.training.trials import stand_still, without_a_trace

AUTO: Literal["auto"] = "auto"
PARTITION_FORMAT = "bow partition"  # of the files of `bow plan`


def read_schedule(schedule: object) -> Schedule | Literal["auto"] | None:
    if schedule is None or schedule == AUTO:
        return AUTO if schedule == AUTO else None
    if isinstance(schedule, str | Path):
        schedule = _parsed(schedule, read_text("the schedule", schedule))
    if not isinstance(schedule, Schedule):
        raise SettingError(
            f'schedule must be a bow.Schedule, a file of one, "auto" or None, got {schedule!r}; of what bow.plan '
            "returns, use found.train(data, ...)"
        )
    schedule.check_executors()
    return schedule


def _parsed(path: str | Path, text: str) -> Schedule:
    try:
        kind = json.loads(text)["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        kind = None
    if kind == PARTITION_FORMAT:
        raise ScheduleError(
            f"schedule={str(path)!r} is a partition of bow plan, not a schedule; train with bow plan train {path}, or "
            f"bow.Found.load({str(path)!r}).train(data, ...)"
        )
    if kind != FORMAT.name:
        raise ScheduleError(f"schedule={str(path)!r} is damaged or not a schedule; write it again with bow schedule")
    return Schedule.from_json(text)


def engine_with(
    schedule: Schedule | Literal["auto"] | None, engine: Engine, device: torch.device | StreamDevice
) -> str:
    """Return the engine for a schedule, which is `graph` on every device; without one, the requested engine."""
    if schedule is None:
        return engine.runner
    check_schedule(schedule, engine, is_cpu(device), ("auto", "graph"))
    return "graph" if isinstance(schedule, Schedule) else engine.runner


def decide(
    schedule: Schedule | Literal["auto"] | None,
    replicas_config: ReplicasConfig,
    batch: Batch,
    say: Callable[[str], None],
    learners: int = 1,
) -> Schedule | None:
    """Return the given schedule, or for `"auto"` the best measured one if it clearly wins."""
    if schedule != AUTO:
        return schedule
    cores = len(available_cores()) // learners
    if is_cpu(replicas_config.device) and learners > 1 and cores < 2:
        say(f"schedule: none, because {learners} learners leave fewer than two cores for each")
        return None
    say("measuring schedules, which takes a minute or so for a large step")
    began = time.perf_counter()
    try:
        comparison = compared(replicas_config, batch, cores)
    except BowError as error:
        say(f"schedule: none, because the step cannot be scheduled ({reason(error)})")
        return None
    say(f"schedule: {comparison.summary} ({time.perf_counter() - began:.1f} s)")
    return None if comparison.choice.is_sequential else comparison.choice.schedule


TURNS = 10
WINDOW_S = 0.05  # seconds of rounds in each turn of a policy


def compared(replicas_config: ReplicasConfig, batch: Batch, cores: int) -> Comparison:
    """Time the policies that a training can use where it will run: on as many cores as a learner has."""
    place = replicas_config.device
    if not is_cpu(place):
        return compare_on(place if isinstance(place, StreamDevice) else cuda_device(place), replicas_config, batch)
    step = with_autocast(replicas_config.task.task_step, torch.device("cpu"), replicas_config.task.engine.precision)
    bound = BoundStep.of(replicas_config.model, batch, step=step)
    profile = measure(bound, threads=numbers_of_threads(cores))
    policies = make_policies(bound, profile, cores)
    return compare(bound, profile, policies=[each for each in policies if isinstance(each.schedule, OrderedSchedule)])


class Rounds:
    """Rounds of one learner in engine `graph`, for timing."""

    def __init__(self, replicas_config: ReplicasConfig, batch: Batch, schedule: Schedule | None) -> None:
        self._batch = batch
        self._replicas = replicas_config.with_engine(schedule=schedule).build("graph", 1)
        stand_still(self._replicas)
        try:
            self.run()
            events = self._replicas.loop.take_events()
            if refusal := [event.message for event in events if event.event == "engine changed"]:
                raise ScheduleError(refusal[0])
        except BaseException:
            self.close()
            raise

    def run(self) -> None:
        self._replicas.rounds_at_once([[self._batch]] * self._replicas.loop.period)
        self._replicas.loop.catch_up()

    def rest(self) -> None:
        """Do nothing: nothing runs between turns."""

    def close(self) -> None:
        self._replicas.close()


def compare_on(device: StreamDevice, replicas_config: ReplicasConfig, batch: Batch) -> Comparison:
    """Profile a learning task on a device; time critical-path-first on several streams against one stream."""
    with without_a_trace(device):
        step = with_autocast(replicas_config.task.task_step, device.torch_device, replicas_config.task.engine.precision)
        bound = bind_on(device, replicas_config.model, batch, step)
        profile = measure_on(device, bound)
        policies = device_policies(bound, profile)
        path = critical_path(bound.dependencies, profile.nanoseconds(1))
        own = bound.batch
        del bound  # frees its weights for the learners
        return timed(replicas_config, own, policies, path)


def timed(replicas_config: ReplicasConfig, batch: Batch, policies: Sequence[Policy], path: CriticalPath) -> Comparison:
    """Time rounds by each policy in turns, then the best and the best on one stream again; skip what cannot run."""
    with contextlib.ExitStack() as stack:
        cases: dict[str, Rounds] = {}
        for policy in policies:
            try:
                rounds = Rounds(replicas_config, batch, None if policy.is_sequential else policy.schedule)
            except BowError:
                if policy.is_sequential:
                    raise
                continue
            cases[policy.name] = stack.enter_context(contextlib.closing(rounds))
        ran = tuple(policy for policy in policies if policy.name in cases)
        found = Comparison(ran, time_in_turns(cases, turns=TURNS, window_s=WINDOW_S), path)
        finalists = {policy.name: cases[policy.name] for policy in (found.best_sequential, found.best)}
        return dataclasses.replace(found, finalist_seconds=time_in_turns(finalists, turns=2 * TURNS, window_s=WINDOW_S))
