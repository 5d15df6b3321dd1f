"""`bow train`: one run, or with `-m` a sweep of runs one after another."""

import importlib
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

import bow
from bow.cli.arguments import build, check_values
from bow.cli.composition import Composition, compose, options, sweep
from bow.cluster import is_leader, is_member
from bow.data import SyntheticSamples
from bow.errors import SettingError
from bow.observe import RunDirectory
from bow.observe.text import metric_text, rate_text

if TYPE_CHECKING:
    from bow.training.result import Result

NOT_SAVED = 1
SWEEP = ("-m", "--multirun")
HELP = ("-h", "--help")
SHOW = "--show"
USAGE = """\
usage: bow train [NAME=VALUE ...] [-m] [--show]

  bow train recipe=lenet data=fashion_mnist learners=4 sync.mu=0.5
  bow train -m learners=1,2,4 seed=range(3)     every combination, one after another
  bow train recipe=lenet --show                 print the settings and stop

-m, --multirun   train once for every combination of values
--show           print the settings that would be used, as YAML
-h, --help       this text
"""


def run(words: Sequence[str]) -> int:
    """Carry out `bow train`; `words` are what stands behind it."""
    flags = {word for word in words if word in (*SWEEP, *HELP, SHOW)}
    overrides = [word for word in words if word not in flags]
    if flags & set(HELP):
        print(_help(), end="")
        return 0
    runs = sweep(overrides) if flags & set(SWEEP) else [overrides]
    compositions = [compose(each) for each in runs]
    _check_run_dirs(compositions)
    for each in compositions:
        check_values(each)
    if SHOW in flags:
        print("---\n".join(yaml.safe_dump(each.settings, sort_keys=False) for each in compositions), end="")
    elif any(each.settings["launcher"] for each in compositions) and not is_member():
        if len(compositions) > 1:
            raise SettingError("launcher=torchrun starts one run, got a sweep; leave out -m, or the launcher")
        launcher = importlib.import_module("bow.cli.launcher")  # what it imports takes a while
        status: int = launcher.launch(compositions[0].settings, compositions[0].overrides)
        return status
    elif len(compositions) == 1:
        return _train(compositions[0])[1]
    else:
        return _sweep(compositions)
    return 0


def _train(composition: Composition) -> tuple["Result", int]:
    """What came out, and the exit status."""
    arguments = build(composition)
    result = bow.train(**arguments)
    return result, _report(result, isinstance(arguments["data"], SyntheticSamples))


def _sweep(compositions: Sequence[Composition]) -> int:
    results, status = [], 0
    for number, composition in enumerate(compositions, 1):
        if is_leader():
            print(f"[{number}/{len(compositions)}] {' '.join(composition.overrides)}", flush=True)
        result, own = _train(composition)
        results.append(result)
        status = max(status, own)
    if not is_leader():
        return status
    width = max(len(" ".join(composition.overrides)) for composition in compositions)
    print("\nall runs")
    for composition, result in zip(compositions, results, strict=True):
        print(f"{' '.join(composition.overrides):{width}}  {_outcome(result)}  {rate_text(result.throughput)}")
    return status


def _report(result: "Result", is_synthetic: bool) -> int:
    """Say what came out; the status is that of a failure where the model is not in the run directory."""
    if not is_leader():
        return 0
    restarts = f"; learners restarted {result.num_restarts} times" if result.num_restarts else ""
    on = " on synthetic data" if is_synthetic else ""
    print(f"central model{on}: {_outcome(result)}{restarts}")
    if result.report_path is not None:
        print(f"report: {_shown(result.report_path)}", flush=True)
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
    except OSError:  # it was deleted meanwhile
        return path
    absolute = path.absolute()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute


def _check_run_dirs(compositions: Sequence[Composition]) -> None:
    named = [str(each.settings["run_dir"]) for each in compositions if each.settings.get("run_dir") is not None]
    twice = {name for name in named if named.count(name) > 1}
    if twice:
        name = min(twice)
        raise SettingError(f"run_dir={name} is one directory for {named.count(name)} runs; leave it out of a sweep")


def _help() -> str:
    groups = "\n".join(f"  {group:10} {', '.join(names)}" for group, names in options().items())
    config = importlib.resources.files("bow.conf").joinpath("config.yaml").read_text(encoding="utf-8")
    settings = config.partition("_self_")[2].partition("\n\n")[2]
    shown = "".join(f"  {line}\n" for line in settings.splitlines())
    return f"{USAGE}\nGroups, each a choice that brings settings of its own:\n{groups}\n\nSettings:\n{shown}"
