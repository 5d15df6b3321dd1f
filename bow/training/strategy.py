"""The strategy of a training: which executors, streams or devices run the operators of a learning task."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from bow.devices import StreamDevice, available_cores, cuda_device
from bow.engines import Batch, EngineName
from bow.engines.captured import with_autocast
from bow.engines.memory import is_cpu
from bow.errors import BowError, ScheduleError, SettingError, reason
from bow.planning.problem import partition
from bow.planning.problem.partition import Partition
from bow.planning.search.search import Found
from bow.schedule import DynamicSchedule, OrderedSchedule, Schedule, schedule
from bow.schedule.profiler import BoundStep, Comparison, compare, make_policies
from bow.schedule.profiler.measuring import measure, numbers_of_threads
from bow.schedule.scheduler import Dispatch
from bow.training.blueprint import Blueprint
from bow.training.strategy_on_device import compare_on
from bow.values import given_path

Strategy: TypeAlias = Schedule | Partition | Found | str | Path | None
"""As users give it: a schedule, a placed strategy, what `bow.plan` has found, a file, `"auto"`, or none."""

AUTO: Literal["auto"] = "auto"


def read_strategy(strategy: Strategy) -> Schedule | Partition | Literal["auto"] | None:
    """A strategy that a training can use."""
    if strategy is None or strategy == AUTO:
        return AUTO if strategy == AUTO else None
    if isinstance(strategy, str | Path):
        file = given_path("strategy", strategy)
        try:
            strategy = _parsed(strategy, file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise SettingError(
                f'strategy={str(strategy)!r} cannot be read ({why}); give "auto", or a file that bow schedule or '
                "bow plan wrote"
            ) from error
    if isinstance(strategy, Found):
        return strategy.partition
    if not isinstance(strategy, Schedule | Partition):
        raise SettingError(
            f'strategy must be a bow.Schedule, a file of one, what bow.plan returns, "auto" or None, got {strategy!r}'
        )
    if isinstance(strategy, Schedule):
        strategy.check_executors()
    return strategy


def _parsed(path: str | Path, text: str) -> Schedule | Partition:
    """A strategy of one kind or the other."""
    kinds: dict[str, type[Schedule] | type[Partition]] = {
        partition.FORMAT: Partition,
        schedule.FORMAT.name: Schedule,
    }
    try:
        kind = kinds[json.loads(text)["format"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ScheduleError(
            f"strategy={str(path)!r} is damaged, or neither a schedule nor a placed strategy; write it again with "
            "bow schedule or bow plan"
        ) from error
    return kind.from_json(text)


def engine_with(
    strategy: Schedule | Literal["auto"] | None,
    engine: EngineName,
    device: torch.device | StreamDevice,
    dispatch: Dispatch,
    compile: bool,
) -> EngineName:
    """The engine that carries a strategy out; the one that was asked for where there is no strategy.

    It is engine `graph` on every device: on a CPU executors are cores, on a GPU they are streams. A GPU is given its
    operators beforehand, so that priorities become an order there.
    """
    if strategy is None:
        return engine
    if isinstance(strategy, DynamicSchedule) and is_cpu(device):
        raise ScheduleError(
            "a training's strategy needs an order for every executor, got one that decides while it runs; "
            "bow schedule compare writes one with an order"
        )
    if engine not in ("auto", "graph"):
        raise SettingError(f'a strategy is carried out by engine="graph", got engine={engine!r}; leave one of them out')
    if dispatch != "fixed":
        raise SettingError(f'a strategy needs dispatch="fixed", got {dispatch!r}; leave one of them out')
    if compile:
        raise SettingError(
            "a compiled learning task is one operator, so that no strategy applies; leave one of them out"
        )
    return "graph" if isinstance(strategy, Schedule) else engine


def decide(
    strategy: Schedule | Literal["auto"] | None,
    blueprint: Blueprint,
    batch: Batch,
    say: Callable[[str], None],
    learners: int = 1,
) -> Schedule | None:
    """The schedule of a training: the one that was given, or the best that measuring finds if it clearly wins."""
    if strategy != AUTO:
        return strategy
    cores = len(available_cores()) // learners
    if is_cpu(blueprint.device) and learners > 1 and cores < 2:
        say(f"strategy: none, because {learners} learners leave no two cores to one of them")
        return None
    began = time.perf_counter()
    try:
        comparison = _compared(blueprint, batch, cores)
    except BowError as error:
        say(f"strategy: none, because the step cannot be scheduled ({reason(error)})")
        return None
    say(f"strategy: {comparison.summary} ({time.perf_counter() - began:.1f} s)")
    return None if comparison.choice.is_sequential else comparison.choice.schedule


def _compared(blueprint: Blueprint, batch: Batch, cores: int) -> Comparison:
    """Policies that a training can use, timed where it will run: on as many cores as a learner has."""
    place = blueprint.device
    if not is_cpu(place):
        return compare_on(place if isinstance(place, StreamDevice) else cuda_device(place), blueprint, batch)
    step = with_autocast(blueprint.step, torch.device("cpu"), blueprint.precision)
    bound = BoundStep.of(blueprint.model, batch, step=step)
    profile = measure(bound, threads=numbers_of_threads(cores))
    policies = make_policies(bound, profile, cores)
    return compare(bound, profile, policies=[each for each in policies if isinstance(each.schedule, OrderedSchedule)])
