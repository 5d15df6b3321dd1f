"""Benchmarks of bow, and the commands that reproduce its published numbers.

Every experiment is a short module or package; `benchmarks.harness` has the shared code. The result pages are templates
in `pages/`, the numbers of the papers are in `papers/`, and the commands write to `results/`.
"""

import importlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import harness
from bow.errors import SettingError

EXPERIMENTS: dict[str, tuple[str, float]] = {
    "engines": ("samples per second of PyTorch, plain and compiled, and of bow's engines", 35),
    "budgets": ("accuracy at the same number of samples: one learner, and several that are averaged", 75),
    "gpu": ("bow and its peers on one GPU, within a time limit", 8),
    "peers": ("time to accuracy of bow and of its alternatives", 60),
    "members": ("independent models trained together, against a loop and processes", 45),
    "tabular": ("folds and members of an MLP on ten small tables, against loops, processes and skorch", 30),
    "halving": ("the best of 32 learning rates by halving, against training all of them", 6),
    "figures": ("the figures of the TensorBow evaluation, and its Table 5.1", 15),
    "tuner": ("whether the tuner finds what an exhaustive trial finds, and what that costs", 20),
    "start": ("whole trainings with default settings, against fixed settings", 180),
    "models": ("38 models of timm, torchvision and Hugging Face in every engine, beside plain PyTorch", 10),
    "bounds": ("the parts of a learner's step, and engine graph against its operators alone", 8),
    "dispatch": ("first-come dispatch of batches against fixed turns", 3),
    "online": ("the tuner under a load that changes during the training", 8),
    "allreduce": ("the cost of AllReduce, and whether learning tasks hide it", 6),
    "schedule": ("a step of the papers' networks, by every policy, against one operator after another", 8),
    "unseen": ("schedules and predicted steps of networks of random structure", 25),
    "memory": ("the most that an offline memory plan could bring", 2),
    "micro": ("the papers' motivation for scheduling operators, on this machine", 1),
    "costs": ("accuracy of cost models of operators", 10),
    "manycore": ("both papers on operator scheduling, on their machine, simulated", 15),
    "placement": ("learned device placement against the paper's baselines", 25),
    "planner": ("the paper's simulated experiments on planning", 240),
    "one_search": ("learners, splits and batch in one search, against each alone, simulated", 14),
    "predicted": ("predicted against measured time of a planned step", 9),
    "tiles": ("a real training by a partition that the planner found", 5),
    "readme": ("writes docs/results.md and the results in the README from the committed JSON", 0.02),
}
"""By name: description, and approximate duration in minutes on two cores."""

HELP = ("-h", "--help")
ALL, DRY, RENDER = "all", "--dry-run", "render"


def usage() -> str:
    """Return the list of experiments."""
    lines = ["usage: python -m benchmarks NAME [KEY=VALUE ...]", ""]
    lines += [f"  {name:<10} {about} ({_told(minutes)})" for name, (about, minutes) in EXPERIMENTS.items()]
    return "\n".join(
        [
            *lines,
            "",
            "python -m benchmarks NAME --help lists the settings of a benchmark, NAME render makes its page and its",
            "pictures again from its JSON; all runs every one of them, all --dry-run says how long that takes.",
        ]
    )


def main(name: str, arguments: Sequence[str]) -> int:
    """Run an experiment; returns 1 if it missed an aim, else 0.

    Raises:
        SettingError: an unknown name or key, or an invalid value; the message lists the choices.
    """
    if name == ALL:
        return _all(arguments)
    if name not in EXPERIMENTS:
        raise SettingError(f"{name!r} is not a benchmark; choose one of {', '.join(EXPERIMENTS)}, or {ALL}")
    module = importlib.import_module(f"benchmarks.{name}")
    if any(argument in HELP for argument in arguments):
        print(harness.describe(name, module.Config))
        return 0
    words = [argument for argument in arguments if argument != RENDER]
    config = harness.parse(module.Config, words).reduced()
    if len(words) < len(arguments):
        render(name, module, config)
        return 0
    command = " ".join(["python -m benchmarks", name, *arguments])
    status: int = module.run(config, command) if hasattr(module, "run") else carry_out(name, module, config, command)
    return status


def carry_out(name: str, module: Any, config: Any, command: str) -> int:
    """Measure, and write JSON, page and pictures; returns 1 if an aim was missed, else 0."""
    import torch

    harness.prepare_output(config.out)
    began, threads, load = time.perf_counter(), torch.get_num_threads(), os.getloadavg()[0]
    try:
        findings = module.measure(config)
    finally:
        torch.set_num_threads(threads)
    values = harness.result(name, command, config, time.perf_counter() - began, findings)
    values["environment"]["load_before"] = round(load, 1)
    harness.write_json(config.out / f"{name}.json", values)
    write_page(name, module, config, values)
    return int(not config.quick and hasattr(module, "missed") and bool(module.missed(values)))


def write_page(name: str, module: Any, config: Any, values: dict[str, Any]) -> None:
    """Write the page, the pictures, and the tables in the documentation, from the values of a result."""
    if hasattr(module, "draw"):
        module.draw(values, config.out)
    page = harness.publish(name, values, config.out, module.page(values) if hasattr(module, "page") else None)
    if hasattr(config, "docs"):
        harness.replace_tables(config.docs / module.DOCUMENT, page)


def render(name: str, module: Any, config: Any) -> None:
    """Recreate the pages and pictures of an experiment from its JSON files.

    Raises:
        SettingError: there are no JSON files.
    """
    if hasattr(module, "render"):
        module.render(config)
        return
    stems = [stem for stem in getattr(module, "STEMS", (name,)) if (config.out / f"{stem}.json").is_file()]
    if not stems:
        raise SettingError(f"{config.out} has no {name}.json; run python -m benchmarks {name} first, or set out=")
    for stem in stems:
        values = json.loads((config.out / f"{stem}.json").read_text(encoding="utf-8"))
        write_page(stem, module, config, values)


def _all(arguments: Sequence[str]) -> int:
    """Run every experiment, except those that need missing hardware."""
    import torch

    if set(arguments) - {DRY}:
        raise SettingError(f"{ALL} takes no settings but {DRY}, got {' '.join(arguments)}; run a benchmark by its name")
    absent = {} if torch.cuda.is_available() else {"gpu": "needs a GPU"}
    for name, (about, minutes) in EXPERIMENTS.items():
        print(f"{name:<10} {absent.get(name) or _told(minutes):<12} {about}")
    names = [name for name in EXPERIMENTS if name not in absent]
    print(
        f"{len(names)} benchmarks, about {_told(sum(EXPERIMENTS[name][1] for name in names))} on two cores", flush=True
    )
    return 0 if DRY in arguments else max([main(name, []) for name in names])


def _told(minutes: float) -> str:
    if minutes < 1:
        return "a second" if minutes < 0.1 else "a minute"
    return f"{minutes:g} minute{'' if minutes == 1 else 's'}" if minutes < 120 else f"{minutes / 60:.1f} hours"
