"""The pairs one after another, and what is written about them."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import setting
from benchmarks.tuner.comparison import PAIRS, Task, compared
from bow.compiling import cache_folder
from bow.runtime.loading import native
from bow.tuner import EngineSetting


@dataclass(frozen=True)
class Config(harness.Config):
    """Settings of the experiment."""

    pairs: tuple[str, ...] = setting(
        tuple(PAIRS), "models and batch sizes", choices=tuple(PAIRS), quick=tuple(PAIRS)[:1]
    )
    run_s: float = setting(600.0, "seconds of the training that is tuned for", quick=40.0)
    passes: int = setting(
        3, "of the exhaustive trial; all settings are in the first, those close to the best in all", quick=1
    )
    first_s: float = setting(0.2, "seconds of a setting in the first pass", quick=0.05)
    stint_s: float = setting(0.4, "seconds of a measurement after that", quick=0.05)
    compile_s: float = setting(
        40.0, "no more numbers of learners are compiled for engine fused after so many seconds", quick=0.1
    )
    turns: int = setting(20, "measurements of the choice and of the fastest, in turn", quick=2)
    most: int = setting(8, "learners that are tried at most", quick=2, least=2)
    threads: int = setting(2, "torch's threads")
    cold: bool = setting(True, "whether nothing has been compiled before; false: what earlier runs compiled is used")


def measure(config: Config) -> dict[str, Any]:
    """Compare every pair, each in a process of its own."""
    native()  # built once on a machine, which belongs to no training
    pairs = []
    for name in config.pairs:
        pairs.append(_compare(name, config))
        harness.say(f"{name}: {pairs[-1]['choice']}; best: {pairs[-1]['best']}: {pairs[-1]['verdict']}")
    return {"target_reached": all(pair["verdict"] == "reached" for pair in pairs), "pairs": pairs}


def missed(values: Mapping[str, Any]) -> bool:
    """Whether some pair did not reach the targets."""
    return not values["target_reached"]


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the page needs besides: by setting, what the calibration said of it."""

    def calibrated(pair: Mapping[str, Any]) -> dict[str, Any]:
        rows = pair["decision_table"]
        return {str(EngineSetting(row["engine"], row["learners"], row["threads"])): row for row in rows}

    return {"calibrated": calibrated}


def _compare(name: str, config: Config) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        is_cold = config.cold and not config.quick
        if is_cold:
            for built in cache_folder().glob("runtime-*"):
                (Path(folder) / built.name).symlink_to(built, target_is_directory=True)
        names = ("run_s", "passes", "first_s", "stint_s", "compile_s", "turns", "threads", "most")
        task = Task(name, **{each: getattr(config, each) for each in names}, cache=folder if is_cold else None)
        return harness.apart(compared, task, environment={"OMP_WAIT_POLICY": "PASSIVE"})
