"""Benchmarks: every number that bow states about itself, and the command that makes it again.

Each benchmark is a module with a dataclass `Settings`, whose fields are what the command line can set, and
`run(settings, command) -> exit status`, which writes its results into `settings.out`.
"""

import importlib
from collections.abc import Sequence

from benchmarks.arguments import describe, parse
from bow.errors import SettingError

NAMES = (
    "engines",
    "sweep",
    "accuracy",
    "readme",
    "gpu",
    "peers",
    "figures",
    "tuner",
    "allreduce",
    "schedule",
    "micro",
    "costs",
    "manycore",
    "placement",
    "planner",
    "predicted",
    "tiles",
)
HELP = ("-h", "--help")


def main(name: str, arguments: Sequence[str]) -> int:
    """Run a benchmark."""
    if name not in NAMES:
        raise SettingError(f"{name!r} is not a benchmark; choose one of {', '.join(NAMES)}")
    module = importlib.import_module(f"benchmarks.{name}")
    if any(argument in HELP for argument in arguments):
        print(describe(name, module.Settings))
        return 0
    status: int = module.run(parse(module.Settings, arguments), " ".join(["python -m benchmarks", name, *arguments]))
    return status
