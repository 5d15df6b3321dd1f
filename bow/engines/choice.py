"""Default engine and number of learners, where the user sets none and nothing is measured.

* Engine: `graph` on a GPU (not measured yet), and on a CPU where the native runtime is built (which takes half a
  minute); otherwise `eager`. Also `eager` if fewer than 100 rounds are known to come: capturing takes 0.13 to 0.8 s and
  saves 0.6 to 23 ms a round, which pays after 15 (LeNet) to 210 rounds (logistic regression).
* Learners: 8 on a GPU. On a CPU one per core; two per core for a tiny model; one if a step fills the cores: large
  products whose weights are used a few times, so that passing over the rows of all learners takes longer than the
  arithmetic. Never more than leave 25 rounds in an epoch.

`benchmarks/results/engines.md` has throughputs by engine; `python -m benchmarks start` times whole trainings.
"""

from pkgutil import resolve_name

import torch
from torch import nn

from bow.devices import StreamDevice, available_cores
from bow.engines.loop import Loop, RoundLoop
from bow.engines.outcome import LearningConfig
from bow.errors import SettingError
from bow.replicas import LearnerGroup, num_trainable
from bow.runtime.loading import is_built
from bow.sync import Synchroniser

# Engines on a CPU, imported when used.
ENGINES = {
    "eager": "bow.engines.eager.Eager",
    "fused": "bow.engines.fused.Fused",
    "graph": "bow.engines.graph.Graph",
    "streams": "bow.engines.streams.Streams",
}

# Engines on a device with streams; `eager` runs there too.
STREAM_ENGINES = {
    "graph": "bow.engines.cuda.graph.CudaGraphs",
    "streams": "bow.engines.cuda.streams.CudaStreams",
    "graph+round": "bow.engines.cuda.whole_round.WholeRound",
    "fused": "bow.engines.cuda.fused.CudaFused",
}

LEARNERS_CUDA = 8
MIN_ROUNDS_PER_EPOCH = 25
GRAPH_ROUNDS = 100
TINY_PARAMETERS = 50_000
CORE_FILLING_PARAMETERS = 1_000_000
REUSING = nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention, nn.Embedding  # layers that reuse weights


def make_engine(
    name: str, group: LearnerGroup, sync: Synchroniser, settings: LearningConfig, device: StreamDevice | None = None
) -> Loop:
    if device is not None and name in STREAM_ENGINES:
        from bow.engines.cuda.loop import DeviceRoundLoop

        return DeviceRoundLoop(resolve_name(STREAM_ENGINES[name]), group, sync, settings, device)
    return RoundLoop(resolve_name(ENGINES[name]), group, sync, settings, device)


def check_device(engine: str, streams: bool) -> None:
    if not streams and engine not in ENGINES:
        raise SettingError(
            'capture="round" is for GPUs, and this training runs on the CPU; leave it out, or use device="cuda"'
        )


def choose_engine(rounds: int | None, device: torch.device) -> str:
    """Resolve `engine="auto"`."""
    is_short = rounds is not None and rounds < GRAPH_ROUNDS
    return "graph" if device.type == "cuda" or (is_built() and not is_short) else "eager"


def choose_learners(
    place: torch.device | StreamDevice, model: nn.Module, samples_per_epoch: int | None, batch_size: int | None
) -> int:
    """Resolve `learners="auto"`."""
    wanted = LEARNERS_CUDA
    if isinstance(place, torch.device) and place.type == "cpu":
        wanted = len(available_cores())
        if not any(isinstance(module, REUSING) for module in model.modules()):
            parameters = num_trainable(model)
            wanted = 1 if parameters >= CORE_FILLING_PARAMETERS else wanted * (1 + (parameters <= TINY_PARAMETERS))
    if samples_per_epoch is None or batch_size is None:
        return wanted
    return max(1, min(wanted, samples_per_epoch // (batch_size * MIN_ROUNDS_PER_EPOCH)))
