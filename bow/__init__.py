"""bow: train several replicas of a model in parallel, without changing the batch size.

Names are imported on first use: `bow --help` does not wait for torch, and the `bow` command can set environment
variables of torch's threads before torch is imported.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "bow does not run on Windows, whose signals and file locks are others; use WSL, where it runs as on Linux"
    )

if TYPE_CHECKING:
    from bow.cli.arguments import recipe as recipe
    from bow.cluster.config import Devices as Devices
    from bow.engines.config import Engine as Engine
    from bow.errors import BowError as BowError
    from bow.graph import StepGraph as StepGraph
    from bow.graph import capture as capture
    from bow.integrations import lightning as lightning
    from bow.integrations import optuna as optuna
    from bow.integrations import sklearn as sklearn
    from bow.members import Halving as Halving
    from bow.members import Variant as Variant
    from bow.members import cross_validate as cross_validate
    from bow.members import grid as grid
    from bow.members.sweep import sweep as sweep
    from bow.planning.search.search import Found as Found
    from bow.planning.tiles.planning import plan as plan
    from bow.runtime.local import LocalRuntime as LocalRuntime
    from bow.schedule import Schedule as Schedule
    from bow.schedule import Timeline as Timeline
    from bow.schedule.profiler import profile as profile
    from bow.sync import ASGD as ASGD
    from bow.sync import EASGD as EASGD
    from bow.sync import SMA as SMA
    from bow.sync import SSGD as SSGD
    from bow.sync import DiLoCo as DiLoCo
    from bow.sync import Independent as Independent
    from bow.sync import LocalSGD as LocalSGD
    from bow.sync import TwoLevel as TwoLevel
    from bow.training import Accuracy as Accuracy
    from bow.training import Callback as Callback
    from bow.training import Metric as Metric
    from bow.training import Replicas as Replicas
    from bow.training import Result as Result
    from bow.training import TraceRounds as TraceRounds
    from bow.training.config import PerRound as PerRound
    from bow.training.config import Run as Run
    from bow.training.config import Validation as Validation
    from bow.training.evaluation import evaluate as evaluate
    from bow.training.learning_rates import RangeTest as RangeTest
    from bow.training.learning_rates import WarmupCosine as WarmupCosine
    from bow.training.learning_rates import lr_range_test as lr_range_test
    from bow.training.stopping import EarlyStopping as EarlyStopping
    from bow.training.train import train as train
    from bow.tuner import Tuner as Tuner

if "torch" not in sys.modules:
    # Read when torch is loaded. Idle OpenMP threads spin by default, which on a shared machine costs more than waking
    # them: LeNet on 2 cores next to one busy process trained at 184 samples/s, and with PASSIVE at 5,700.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

_HOMES = {
    "bow.cli.arguments": ("recipe",),
    "bow.cluster.config": ("Devices",),
    "bow.engines.config": ("Engine",),
    "bow.errors": ("BowError",),
    "bow.graph": ("StepGraph", "capture"),
    "bow.schedule.profiler": ("profile",),
    "bow.runtime.local": ("LocalRuntime",),
    "bow.schedule": ("Schedule", "Timeline"),
    "bow.sync": ("ASGD", "DiLoCo", "EASGD", "Independent", "LocalSGD", "SMA", "SSGD", "TwoLevel"),
    "bow.members": ("Halving", "Variant", "cross_validate", "grid", "sweep"),
    "bow.planning.search.search": ("Found",),
    "bow.planning.tiles.planning": ("plan",),
    "bow.training": ("Accuracy", "Callback", "Metric", "Replicas", "Result", "TraceRounds", "train"),
    "bow.training.config": ("PerRound", "Run", "Validation"),
    "bow.training.evaluation": ("evaluate",),
    "bow.training.learning_rates": ("RangeTest", "WarmupCosine", "lr_range_test"),
    "bow.training.stopping": ("EarlyStopping",),
    "bow.tuner": ("Tuner",),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)

_PACKAGES = ("data", "devices", "members", "models", "observe", "sync", "testing")  # subpackages that users import from
# Not part of `from bow import *`: each imports its library.
_INTEGRATIONS = {
    "lightning": "bow.integrations.lightning",
    "optuna": "bow.integrations.optuna",
    "sklearn": "bow.integrations.sklearn",
}


def __getattr__(name: str) -> Any:
    if name in _INTEGRATIONS or name in _PACKAGES:
        return importlib.import_module(_INTEGRATIONS.get(name, f"bow.{name}"))
    for home, names in _HOMES.items():
        if name in names:
            return globals().setdefault(name, getattr(importlib.import_module(home), name))
    if name == "BestCheckpoint":
        raise AttributeError("bow keeps the best model by itself: see result.best, and best.safetensors of the run")
    raise AttributeError(f"module 'bow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES, *_INTEGRATIONS})
