"""Which engine runs, and with how many learners, where the user leaves it open.

Until there is a tuner that measures, "auto" is a rule:

* learners: 4 on a CPU, 8 on a GPU, but no more than leave at least 25 rounds in an epoch;
* engine: `fused` for models of at most 20,000 parameters that train for at least 5,000 rounds, so that compiling
  (ten to thirty seconds) pays; `eager` otherwise. See `benchmarks/results/engines.json` for what this rests on.
"""

from typing import Literal, TypeAlias, get_args

import torch

from bow.engine.base import Engine
from bow.engine.eager import Eager
from bow.engine.fused import Fused
from bow.errors import SettingError

EngineName: TypeAlias = Literal["auto", "eager", "fused"]

ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Eager, Fused)}

LEARNERS_CPU = 4
LEARNERS_CUDA = 8
MIN_ROUNDS_PER_EPOCH = 25
FUSED_PARAMETERS = 20_000
FUSED_ROUNDS = 5_000


def check_engine(engine: str) -> None:
    """Refuse an engine that does not exist."""
    names = get_args(EngineName)
    if engine not in names:
        raise SettingError(f"engine must be one of {', '.join(names)}, got {engine!r}")


def choose_engine(num_parameters: int, rounds: int | None) -> type[Engine]:
    """The engine for `engine="auto"`.

    Args:
        num_parameters: trainable parameters of the model.
        rounds: how long the training will be, where known.
    """
    long = rounds is None or rounds >= FUSED_ROUNDS
    return Fused if num_parameters <= FUSED_PARAMETERS and long else Eager


def choose_learners(device: torch.device, samples_per_epoch: int | None, batch_size: int | None) -> int:
    """The number of learners for `learners="auto"`."""
    wanted = LEARNERS_CUDA if device.type == "cuda" else LEARNERS_CPU
    if samples_per_epoch is None or batch_size is None:
        return wanted
    return max(1, min(wanted, samples_per_epoch // (batch_size * MIN_ROUNDS_PER_EPOCH)))
