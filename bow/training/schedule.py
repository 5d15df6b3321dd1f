"""The schedule of a training: which executors or streams run the operators of a learning task."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from bow.devices import StreamDevice, available_cores
from bow.engines import Batch
from bow.engines.config import Engine
from bow.engines.memory import is_cpu
from bow.errors import BowError, ScheduleError, SettingError, reason
from bow.files import read_text
from bow.schedule import Schedule
from bow.schedule.schedule import FORMAT
from bow.training.checks import check_schedule
from bow.training.replicas_config import ReplicasConfig

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
    from bow.training.schedule_search import compared  # the profiler, not needed otherwise

    say("measuring schedules, which takes a minute or so for a large step")
    began = time.perf_counter()
    try:
        comparison = compared(replicas_config, batch, cores)
    except BowError as error:
        say(f"schedule: none, because the step cannot be scheduled ({reason(error)})")
        return None
    say(f"schedule: {comparison.summary} ({time.perf_counter() - began:.1f} s)")
    return None if comparison.choice.is_sequential else comparison.choice.schedule
