"""`bow schedule`: profile, simulate, run and compare schedules of a learning task's operators."""

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bow.cli.checking import FLAG, NAME, Reader, read_words, suggestion
from bow.cli.subject import parts
from bow.devices import available_cores
from bow.errors import RuntimeUnavailableError, SettingError, disk_reason, warn_user
from bow.files import save_text
from bow.runtime.loading import is_available, native
from bow.schedule import OrderedSchedule, Timeline
from bow.schedule.picture import co_running, co_running_by_part, mean_co_running, side_by_side, timeline_svg
from bow.schedule.profiler import (
    BoundStep,
    Policy,
    Profile,
    compare,
    make_policies,
    measure,
    measure_schedule,
    policies_here,
    symmetric,
)
from bow.schedule.profiler.measuring import REPEATS
from bow.schedule.profiler.report import (
    before_after_table,
    longest_table,
    path_table,
    policy_table,
    step_table,
    symmetric_table,
)
from bow.schedule.scheduler import critical_path
from bow.terminal import folded, terminal
from bow.values import given_path, whole

USAGE = """\
usage: bow schedule ACTION [NAME=VALUE ...]

  profile    measure every operator of a learning task, by number of threads, and the step by number of executors
  simulate   the critical path, the parallelism there is, and every policy in simulated time
  run        run one policy: longest operators before and after, co-running operators, timeline
  compare    time every policy in turns, and write the best strategy for bow train engine.schedule=...

The model is given as for bow train: recipe=lstm batch_size=32, model=...,
data=...; or as a network of the papers: network=googlenet size=tiny (sizes: tiny,
and those of the papers)

out=DIRECTORY   folder for the files (schedule)
policy=NAME     policy of action run (the fastest in simulated time)
turns=N         of every policy in compare (10)
fresh=true      measure all operators again, without the cache
interval=N      measure with N more threads at a time until no operator becomes faster (1, 2, 4, ... and all cores)
"""


@dataclass(frozen=True)
class ScheduleSettings:
    """Settings of `bow schedule` itself, without those of the model."""

    out: Path = Path("schedule")
    policy: str = ""
    turns: int = 10
    fresh: bool = False
    interval: int | None = None
    network: str = ""
    size: str = ""


def run(words: Sequence[str]) -> int:
    if not words:
        print(folded(USAGE), end="")
        return 0
    action, rest = words[0], words[1:]
    if action not in ACTIONS:
        raise SettingError(f"{action!r} is not an action of bow schedule; {suggestion(action, ACTIONS)}")
    own, others = read_words(rest, READERS)
    settings = ScheduleSettings(**own)
    unused = [("policy", "run")] if settings.policy and action != "run" else []
    unused += [("turns", "compare")] if settings.turns != ScheduleSettings.turns and action != "compare" else []
    for name, used_by in unused:
        warn_user(f"{name} has no effect on bow schedule {action}; it is for bow schedule {used_by}")
    console = terminal()
    _make_folder(settings.out)
    _check_runtime(action)
    model, batch, function, _ = parts(settings.network, settings.size, others)
    step = BoundStep.of(model, batch, step=function)
    profile = measure(
        step,
        interval=settings.interval,
        cache=not settings.fresh,
        progress=lambda text: console.print(f"measuring {text}"),
    )
    save_text("the profile", settings.out / "profile.json", profile.to_json())
    ACTIONS[action](console, step, profile, settings)
    console.print(f"files: {settings.out}")
    return 0


def _profile(console: Console, step: BoundStep, profile: Profile, settings: ScheduleSettings) -> None:
    console.print(step_table(profile), "")
    found = symmetric(step, profile, len(available_cores()), repeats=REPEATS) if is_available() else None
    if found is not None:
        console.print(symmetric_table(found), "")
    console.print(longest_table(profile, found))


def _simulate(console: Console, step: BoundStep, profile: Profile, settings: ScheduleSettings) -> None:
    policies = make_policies(step, profile, len(available_cores()))
    path = critical_path(step.dependencies, profile.nanoseconds(1))
    console.print(path_table(path, profile), "", policy_table(policies))
    fastest = min(policies, key=lambda policy: policy.predicted.makespan)
    _write_timeline(settings.out, fastest.name, simulated=fastest.predicted)


def _run(console: Console, step: BoundStep, profile: Profile, settings: ScheduleSettings) -> None:
    policies = policies_here(step, profile, len(available_cores()), REPEATS)
    policy = _named(policies, settings.policy)
    usual = min((each for each in policies if each.is_sequential), key=lambda each: each.predicted.makespan)
    before, _ = measure_schedule(step, usual.schedule, REPEATS)
    after, timeline = measure_schedule(step, policy.schedule, REPEATS)
    console.print(before_after_table(profile, before, after, (usual.name, policy.name)))
    simulated = policy.predicted
    console.print(
        f"\n{policy.name}: a step of {timeline.makespan * 1e3:.3f} ms, simulated {simulated.makespan * 1e3:.3f}; "
        f"{mean_co_running(timeline):.2f} operators run at once on average, simulated "
        f"{mean_co_running(simulated):.2f}, at most {max(count for _, count in co_running(timeline))}"
    )
    for name, own in (("simulated", simulated), ("measured", timeline)):
        counts = " ".join(f"{count:.1f}" for count in co_running_by_part(own))
        console.print(f"operators at once in each tenth of the step, {name}: {counts}")
    _write_timeline(settings.out, policy.name, simulated=simulated, measured=timeline)


def _compare(console: Console, step: BoundStep, profile: Profile, settings: ScheduleSettings) -> None:
    with console.status("timing") as status:
        found = compare(step, profile, turns=settings.turns, progress=lambda text: status.update(f"timing {text}"))
    console.print(path_table(found.path, profile), "", policy_table(found.policies, found), "", found.summary, sep="\n")
    _, timeline = measure_schedule(step, found.choice.schedule, REPEATS)
    _write_timeline(settings.out, found.choice.name, simulated=found.choice.predicted, measured=timeline)
    of_training = tuple(each for each in found.policies if isinstance(each.schedule, OrderedSchedule))
    fixed = replace(found, policies=of_training).choice
    file = settings.out / "strategy.json"
    if fixed.is_sequential:
        with contextlib.suppress(OSError):
            file.unlink()
        console.print("no strategy for training: operators run one after another fastest")
    else:
        save_text("the strategy", file, fixed.schedule.to_json())
        console.print(
            f"for training, which needs a fixed order: {fixed.name}: bow train engine=graph engine.schedule={file}"
        )


ACTIONS: dict[str, Callable[[Console, BoundStep, Profile, ScheduleSettings], None]] = {
    "profile": _profile,
    "simulate": _simulate,
    "run": _run,
    "compare": _compare,
}


def _write_timeline(out: Path, title: str, **timelines: Timeline) -> None:
    timeline = side_by_side(**timelines)
    save_text("the timeline", out / "timeline.json", json.dumps(timeline.to_chrome()))
    save_text("its picture", out / "timeline.svg", timeline_svg(timeline, title))


def _check_runtime(action: str) -> None:
    """Require the native runtime for run and compare; without it, operators can only be measured."""
    try:
        native()
    except RuntimeUnavailableError as error:
        if action in ("run", "compare"):
            raise
        warn_user(f"operators are measured in Python: {error}")


def _named(policies: Sequence[Policy], name: str) -> Policy:
    if not name:
        return min(policies, key=lambda policy: policy.predicted.makespan)
    if (found := next((policy for policy in policies if policy.name == name), None)) is None:
        names = "; ".join(policy.name for policy in policies)
        problem = "needs two hardware threads on each core" if name == "strategy 4" else "does not exist"
        raise SettingError(f"policy={name!r} {problem}; use one of: {names}")
    return found


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"out={out} cannot be made ({disk_reason(error)}); give another folder") from error
    if not os.access(out, os.W_OK):
        raise SettingError(f"out={out} cannot be written; give another folder")


def _count(name: str) -> Reader:
    return lambda text: whole(name, int(text) if text.isdecimal() else text), "a whole number"


READERS: dict[str, Reader] = {
    "out": (lambda text: given_path("out", text), "a folder"),
    "policy": NAME,
    "turns": _count("turns"),
    "fresh": FLAG,
    "interval": _count("interval"),
    "network": NAME,
    "size": NAME,
}
