"""Default engine and number of learners, where the user sets none and nothing is measured.

* Engine: `graph` on a GPU (not measured yet), and on a CPU where the native runtime is built (which takes half a
  minute); otherwise `eager`. Also `eager` if fewer than 100 rounds are known to come: capturing takes 0.13 to 0.8 s and
  saves 0.6 to 23 ms a round, which pays after 15 (LeNet) to 210 rounds (logistic regression).
* Learners: 8 on a GPU, one per core on a CPU. More of them gain little, and an MLP of six million weights, too, gains
  by two on two cores (`start`). Never more than leave 25 rounds in an epoch.

`benchmarks/results/engines.md` has throughputs by engine; `python -m benchmarks start` times whole trainings.
"""

from pkgutil import resolve_name

import torch

from bow.devices import StreamDevice, available_cores
from bow.engines.loop import Loop, RoundLoop
from bow.engines.outcome import LearningConfig
from bow.errors import SettingError
from bow.replicas import LearnerGroup
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
    place: torch.device | StreamDevice, samples_per_epoch: int | None = None, batch_size: int | None = None
) -> int:
    """Resolve `learners="auto"`."""
    is_cpu = isinstance(place, torch.device) and place.type == "cpu"
    wanted = len(available_cores()) if is_cpu else LEARNERS_CUDA
    if samples_per_epoch is None or batch_size is None:
        return wanted
    return max(1, min(wanted, samples_per_epoch // (batch_size * MIN_ROUNDS_PER_EPOCH)))
