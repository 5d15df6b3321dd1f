"""`bow train`: train one run, or with `-m` a sweep of runs, side by side or one after another."""

import contextlib
import importlib
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bow.cli.arguments import AUTO, MEMBERS_OWN, build, build_alike, check_values
from bow.cli.arguments import SWEEP as SIDE
from bow.cli.composition import Composition, compose, options, recompose, sweep
from bow.cluster import is_leader, is_member
from bow.data import SyntheticSamples
from bow.engines.config import Engine
from bow.errors import SettingError, warn_user
from bow.members.saving import MEMBERS
from bow.observe import RunDirectory
from bow.observe.records import SWITCHED, read_records
from bow.observe.report import data_of, flat, value_text
from bow.observe.run_directory import readable
from bow.observe.text import metric_text, rate_text
from bow.terminal import say, terminal, terminal_table
from bow.training.config import Run, TrainConfig
from bow.training.train import run_training
from bow.values import given_path

if TYPE_CHECKING:
    from bow.training.result import Result

NOT_SAVED = 1
SWEEP = ("-m", "--multirun")
SHOW = "--show"
USAGE = """\
usage: bow train [NAME=VALUE ...] [-m] [--show] [--config FILE]

  bow train recipe=lenet data=fashion_mnist learners=4 sync.mu=0.5
  bow train -m optimizer.lr=.01,.02 'seed=range(4)'   every combination, side by side
  bow train -m learners=1,2,4 'seed=range(3)'   every combination, one after another
  bow train recipe=lenet --show                 print the settings and stop
  bow train --config runs/first/config.yaml run=runs/again    the same training once more

-m, --multirun   train once for every combination of values: in one sweep where
                 only seed, optimizer, scheduler and batch_size differ, side by
                 side if there is one learner each; otherwise, or with
                 sweep=one_by_one, one after another
--show           print the settings that would be used, as YAML
--config FILE    the settings of a run instead of those of conf, with NAME=VALUE changed
-h, --help       this text
"""
CONFIG = "--config"
PARTITION = "partition"  # key of a run's settings for the partition file of bow plan train


def run(words: Sequence[str], partition: str | None = None, checks: bool = True) -> int:
    """Run `bow train`, or with a partition's file `bow plan train`; `words` are its arguments."""
    words, file = _config_file(words)
    flags = {word for word in words if word in (*SWEEP, SHOW)}
    overrides = [word for word in words if word not in flags]
    runs = sweep(overrides) if flags & set(SWEEP) else [overrides]
    if file is None:
        compositions = [compose(each) for each in runs]
    else:
        compositions = [recompose(each, [*_as_found(each, run), *run]) for each in _files(file) for run in runs]
    if partition is not None:
        compositions = [_by_partition(each, partition, checks) for each in compositions]
    for each in compositions:
        check_values(each)
    why = _why_one_by_one(compositions)
    if why is not None:
        _check_run_dirs(compositions)
    if SHOW in flags:
        print("---\n".join(yaml.safe_dump(each.settings, sort_keys=False) for each in compositions), end="")
    elif any(each.settings["launcher"] for each in compositions) and not is_member():
        if len(compositions) > 1:
            raise SettingError("launcher=torchrun starts one run, got a sweep; leave out -m, or the launcher")
        launcher = importlib.import_module("bow.cli.launcher")  # its imports are slow
        command = ["train"] if partition is None else ["plan", "train", partition, f"check={str(checks).lower()}"]
        command += [] if file is None else [CONFIG, file]
        status: int = launcher.launch(compositions[0].settings, compositions[0].overrides, command)
        return status
    elif len(compositions) == 1:
        return _train(compositions[0])[1]
    elif why is None:
        return _side_by_side(compositions)
    else:
        return _one_by_one(compositions, why)
    return 0


def _train(composition: Composition) -> tuple["Result", int]:
    arguments = build(composition)
    by: dict[str, Any] = {}
    if (given := composition.settings.get(PARTITION)) is not None:
        from bow.planning.search.search import Found

        by = {"partition": Found.load(given["path"]).partition, "check_partition": given["check"]}
    result = run_training(TrainConfig(**arguments, **by, source=composition.settings))
    is_synthetic = isinstance(arguments["data"], SyntheticSamples)
    return result, _report(result, "synthetic data" if is_synthetic else data_of(dict(flat(composition.settings))))


def _config_file(words: Sequence[str]) -> tuple[list[str], str | None]:
    words = [part for word in words for part in (word.split("=", 1) if word.startswith(f"{CONFIG}=") else [word])]
    if CONFIG not in words:
        return words, None
    at = words.index(CONFIG)
    if at + 1 == len(words) or words.count(CONFIG) > 1:
        raise SettingError(f"{CONFIG} needs one file; write {CONFIG} RUN/config.yaml")
    return [*words[:at], *words[at + 2 :]], words[at + 1]


def _files(file: str) -> list[Path]:
    path = given_path(CONFIG, file)
    variants = RunDirectory(path.parent).read_config().get("variants")
    if path.name != "config.yaml" or not isinstance(variants, list):
        return [path]
    members = sorted(path.parent.glob(f"{MEMBERS}/*/config.yaml"))
    if len(members) < len(variants):
        raise SettingError(
            f"{CONFIG} {file} is of a sweep with {len(variants) - len(members)} unfinished members; resume it with its "
            "command and run.resume=auto"
        )
    return members


def _as_found(file: Path, overrides: Sequence[str]) -> list[str]:
    """Return settings that pin an automatically chosen engine and number of learners to those the run used."""
    directory, given = RunDirectory(file.parent), {each.split("=")[0] for each in overrides}
    with readable(file):
        if file.name != directory.config_path.name or not directory.metrics_path.is_file() or "run.resume" in given:
            return []
    settings, records = directory.read_config(), read_records(directory.metrics_path)
    if PARTITION in settings or not isinstance(settings.get("engine"), Mapping):
        return []  # a partition sets both; settings of an earlier version are rejected later
    began, tuned = (next((record for record in records if record["kind"] == k), {}) for k in ("start", "calibration"))
    learners, (engine, _, how) = began.get("learners"), str(began.get("engine", "")).partition(" ")
    found = {}
    if learners and settings.get("learners") == AUTO and "learners" not in given:
        found["learners"] = learners
        if {record.get("learners", learners) for record in records} != {learners}:
            message = f"the number of learners changed in the run of {file}; this one uses {learners}"
            warn_user(message)
    if engine and settings["engine"].get("name") == AUTO and not given & {"engine", "engine.name"}:
        format = tuned.get("memory_format")
        ran = Engine().run_by(engine, how == "(compiled)" or bool(tuned.get("compile")), format)
        switches = [record["round"] for record in records if record.get("event") == SWITCHED]
        if switches and not ran.compile and "engine.compile" not in given:
            message = f"the run of {file} was compiled from round {switches[0]} on; this one is not"
            warn_user(f"{message}, and equals it to rounding")
        names = "name", "capture", "compile", *(["memory_format"] if format else [])
        found |= {f"engine.{name}": getattr(ran, name) for name in names}
    return [f"{name}={value_text(value)}" for name, value in found.items() if name not in given]


def _by_partition(composition: Composition, file: str, checks: bool) -> Composition:
    learners = composition.settings["learners"] if composition.given("learners") else "auto"
    given = {PARTITION: {"path": file, "check": checks}}
    return replace(composition, settings={**composition.settings, "learners": learners, **given})


def _why_one_by_one(compositions: Sequence[Composition]) -> str | None:
    """Return why runs are trained one after another, empty if requested; None: side by side."""
    settings = [dict(flat(each.settings)) for each in compositions]
    if len(settings) == 1 or any(each.get(SIDE) == "one_by_one" for each in settings):
        return ""
    if PARTITION in compositions[0].settings:
        return "operators are split by a partition"
    if compositions[0].settings["run"]["resume"] not in (None, "auto"):
        return "they resume from a checkpoint"
    names = dict.fromkeys(name for each in settings for name in each)
    differing = [name for name in names if len({each.get(name) for each in settings}) > 1]
    others = [name for name in differing if name.split(".")[0] not in MEMBERS_OWN]
    return f"they differ in {', '.join(others)}" if others else None


def _side_by_side(compositions: Sequence[Composition]) -> int:
    from bow.members.jobs import as_members, side_by_side, why_alone
    from bow.members.saving import GroupLogger
    from bow.members.sweep import run_sweep

    first, asked = build(compositions[0]), compositions[0].settings["learners"]
    is_own = compositions[0].choices and not compositions[0].given("learners")  # a recipe's, for a single run
    first["learners"] = learners = 1 if is_own or asked == AUTO else asked
    instead = "" if asked in (learners, AUTO) else f" instead of {asked}"
    built = [first, *(build_alike(first, each) for each in compositions[1:])]
    run = first["run"]
    theirs = [each for each in run.loggers if not isinstance(each, GroupLogger)]
    configs = [
        TrainConfig(
            **{**arguments, "run": Run(loggers=theirs)},
            source={**composition.settings, "learners": learners, "run": {**composition.settings["run"], "path": None}},
        )
        for arguments, composition in zip(built, compositions, strict=True)
    ]
    if (why := why_alone(configs)) is not None:
        _check_run_dirs(compositions)
        return _one_by_one(compositions, why)
    on = " on synthetic data" if isinstance(first["data"], SyntheticSamples) else ""
    say(f"{side_by_side(configs)}{instead}{on} (sweep=one_by_one: {'in turn' if learners == 1 else 'a report each'})")
    result = run_sweep(as_members(configs, run, "resume with the same command and run={path} run.resume=auto"))
    for setting in result.varying:
        with contextlib.suppress(SettingError):
            say(str(result.compare(setting)))
    if result.report_path is not None:
        say(f"report: {_shown(result.report_path)}")
    lost = [m for m in result.members if m.model is not None and not RunDirectory(m.run_dir).model_path.exists()]
    return NOT_SAVED if lost or all(member.stopped == "diverged" for member in result.members) else 0


def _one_by_one(compositions: Sequence[Composition], why: str) -> int:
    if why and is_leader():
        say(f"{len(compositions)} runs one after another: {why}")
    results, status = [], 0
    for number, composition in enumerate(compositions, 1):
        if is_leader():
            say(f"[{number}/{len(compositions)}] {' '.join(composition.overrides)}")
        result, own = _train(composition)
        results.append(result)
        status = max(status, own)
    if not is_leader():
        return status
    table = terminal_table("\nall runs", "settings", "result", "samples/s", texts=(0, 1))
    for composition, result in zip(compositions, results, strict=True):
        rate = rate_text(result.throughput).removesuffix(" samples/s")
        table.add_row(" ".join(composition.overrides), _outcome(result), rate)
    terminal().print(table)
    return status


def _report(result: "Result", data: str) -> int:
    """Print the result; return the exit status, a failure if the model was not saved in the run directory."""
    if not is_leader():
        return 0
    restarts = f"; learners restarted {result.num_restarts} times" if result.num_restarts else ""
    on = f" on {data}" if data else ""
    say(f"central model{on}: {_outcome(result)}{restarts}")
    best = result.best
    if best is not None and best.model is not result.model:
        value = f"{best.metric} {metric_text(best.metric, best.metrics[best.metric])}"
        path = RunDirectory(result.run_dir).best_path
        where = f", in {_shown(path)}" if path.exists() else ""
        say(f"best: {value} after {round(best.epoch, 1):g} epochs{where}")
    if result.report_path is not None:
        say(f"report: {_shown(result.report_path)}")
    return 0 if result.model_path == RunDirectory(result.run_dir).model_path else NOT_SAVED


def _outcome(result: "Result") -> str:
    values = result.metrics
    if not values and result.history:
        values = {"train loss": result.history[-1]["train_loss"]}
    names = sorted(values, key=lambda name: "loss" in name)
    return ", ".join(f"{name} {metric_text(name, values[name])}" for name in names) or "no epoch was completed"


def _shown(path: Path) -> Path:
    try:
        here = Path.cwd()
    except OSError:  # deleted meanwhile
        return path
    absolute = path.absolute()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute


def _check_run_dirs(compositions: Sequence[Composition]) -> None:
    named = [str(each.settings["run"]["path"]) for each in compositions if each.settings["run"].get("path") is not None]
    if twice := {name for name in named if named.count(name) > 1}:
        name = min(twice)
        raise SettingError(f"run.path={name} is one directory for {named.count(name)} runs; leave it out of a sweep")


def usage() -> str:
    groups = "\n".join(f"  {group:10} {', '.join(names)}" for group, names in options().items())
    config = importlib.resources.files("bow.conf").joinpath("config.yaml").read_text(encoding="utf-8")
    settings = config.partition("_self_")[2].partition("\n\n")[2]
    shown = "".join(f"  {line}\n" for line in settings.splitlines())
    return f"{USAGE}\nGroups; each option has its own settings:\n{groups}\n\nSettings:\n{shown}"
