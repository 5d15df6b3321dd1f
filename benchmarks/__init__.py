"""Benchmarks: every number that bow states about itself, and the command that makes it again.

An experiment is a short module or package here; what they share is `benchmarks.harness`. Their pages are templates in
`pages/`, the papers' numbers are in `papers/`, and `results/` is what the commands wrote.
"""

import importlib
import os
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import harness
from bow.errors import SettingError

EXPERIMENTS = {
    "engines": ("samples per second of PyTorch, plain and compiled, and of bow's engines", "20 minutes"),
    "sweep": ("learning rate x mu x learners on the digits; the default of mu follows from it", "20 minutes"),
    "accuracy": ("how far LeNet gets on Fashion-MNIST, epoch by epoch", "15 minutes"),
    "readme": ("writes the results in the README from the committed JSON", "a second"),
    "gpu": ("bow on one GPU, beside its peers, within a time that is given", "8 minutes"),
    "peers": ("time to accuracy of bow, and of what one would take instead of it", "1 hour"),
    "figures": ("the figures of the TensorBow evaluation, and its Table 5.1", "15 minutes"),
    "tuner": ("whether the tuner finds what an exhaustive trial finds, and what that costs", "20 minutes"),
    "allreduce": ("what the sum between devices costs, and whether the learning tasks hide it", "6 minutes"),
    "schedule": ("a step of the papers' networks, by every policy, against one operator after another", "8 minutes"),
    "micro": ("what made the papers schedule operators, on the machine at hand", "1 minute"),
    "costs": ("how well cost models know what operators take", "10 minutes"),
    "manycore": ("both papers on operator scheduling, on their machine, simulated", "15 minutes"),
    "placement": ("learned device placement against all that it was compared with", "25 minutes"),
    "planner": ("the paper's experiments on planning that need no machine, simulated", "4 hours"),
    "predicted": ("what the planner predicts that a step takes, against what it takes here", "9 minutes"),
    "tiles": ("a real training by a strategy that the planner found", "5 minutes"),
}
"""By name: what it shows in a line, and about how long it takes on two cores."""

HELP = ("-h", "--help")


def usage() -> str:
    """The experiments, with a line each."""
    lines = ["usage: python -m benchmarks NAME [KEY=VALUE ...]", ""]
    lines += [f"  {name:<10} {about} ({takes})" for name, (about, takes) in EXPERIMENTS.items()]
    return "\n".join([*lines, "", "python -m benchmarks NAME --help lists the settings of a benchmark."])


def main(name: str, arguments: Sequence[str]) -> int:
    """Run an experiment; 1 where it has an aim and missed it, else 0.

    Raises:
        SettingError: an unknown name or key, or a value that does not fit; the message lists the choices.
    """
    if name not in EXPERIMENTS:
        raise SettingError(f"{name!r} is not a benchmark; choose one of {', '.join(EXPERIMENTS)}")
    module = importlib.import_module(f"benchmarks.{name}")
    if not hasattr(module, "Config"):
        return _old(name, module, arguments)
    if any(argument in HELP for argument in arguments):
        print(harness.describe(name, module.Config))
        return 0
    config, command = harness.parse(module.Config, arguments), " ".join(["python -m benchmarks", name, *arguments])
    if hasattr(module, "run"):
        status: int = module.run(config, command)
        return status
    return carry_out(name, module, config.reduced(), command)


def carry_out(name: str, module: Any, config: Any, command: str) -> int:
    """Measure, write JSON, page and pictures; 1 where an aim was missed."""
    import torch

    harness.prepare_output(config.out)
    began, threads = time.perf_counter(), torch.get_num_threads()
    try:
        findings = module.measure(config)
    finally:
        torch.set_num_threads(threads)
    values = harness.result(name, command, config, time.perf_counter() - began, findings)
    if hasattr(module, "draw"):
        module.draw(values, config.out)
    harness.publish(name, values, config.out, module.page(values) if hasattr(module, "page") else None)
    return int(not config.quick and hasattr(module, "missed") and bool(module.missed(values)))


def _old(name: str, module: Any, arguments: Sequence[str]) -> int:
    from benchmarks.arguments import describe, parse

    if any(argument in HELP for argument in arguments):
        print(describe(name, module.Settings))
        return 0
    return int(module.run(parse(module.Settings, arguments), " ".join(["python -m benchmarks", name, *arguments])))


def idle_threads_sleep() -> None:
    """Idle threads of OpenMP spin unless told not to, and take the others their cores: as the command bow does."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
