"""Compare all pairs, and write the results."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from benchmarks import harness
from benchmarks.caches import empty_caches
from benchmarks.harness import setting
from benchmarks.tuner.comparison import PAIRS, Task, compare
from bow.runtime.loading import native
from bow.tuner import EngineSetting


@dataclass(frozen=True)
class Config(harness.Config):
    pairs: tuple[str, ...] = setting(
        tuple(PAIRS), "models and batch sizes", choices=tuple(PAIRS), quick=tuple(PAIRS)[:1]
    )
    run_s: float = setting(600.0, "duration of the training to tune for, in seconds", quick=40.0)
    passes: int = setting(
        3, "passes of the exhaustive search; all settings in the first, those close to the best in all", quick=1
    )
    first_s: float = setting(0.2, "seconds of each setting in the first pass", quick=0.05)
    stint_s: float = setting(0.4, "seconds of a measurement after that", quick=0.05)
    compile_s: float = setting(40.0, "time limit for compiling further numbers of learners for engine fused", quick=0.1)
    turns: int = setting(20, "number of measurements of the choice and of the fastest", quick=2)
    most: int = setting(8, "largest number of learners", quick=2, least=2)
    threads: int = setting(2, "torch's threads")
    cold: bool = setting(True, "start with empty caches of compiled code; false: reuse those of earlier runs")


def measure(config: Config) -> dict[str, Any]:
    """Compare every pair, each in a separate process."""
    native()  # built once per machine, not part of a training
    pairs = []
    for name in config.pairs:
        pairs.append(_compare(name, config))
        harness.say(f"{name}: {pairs[-1]['choice']}; best: {pairs[-1]['best']}: {pairs[-1]['verdict']}")
    return {"target_reached": all(pair["verdict"] == "reached" for pair in pairs), "pairs": pairs}


def missed(values: Mapping[str, Any]) -> bool:
    """Whether a pair missed the targets."""
    return not values["target_reached"]


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    """Additional values for the page template: by setting, the tuner's decision."""

    def calibrated(pair: Mapping[str, Any]) -> dict[str, Any]:
        rows = pair["decision_table"]
        return {str(EngineSetting(row["engine"], row["learners"], row["threads"])): row for row in rows}

    return {"calibrated": calibrated}


def _compare(name: str, config: Config) -> dict[str, Any]:
    names = ("run_s", "passes", "first_s", "stint_s", "compile_s", "turns", "threads", "most")
    is_cold = config.cold and not config.quick
    caches: AbstractContextManager[Mapping[str, str]] = empty_caches() if is_cold else nullcontext({})
    with caches as variables:
        task = Task(name, **{each: getattr(config, each) for each in names}, caches=variables)
        return harness.apart(compare, task, environment={"OMP_WAIT_POLICY": "PASSIVE"})
