"""Which engine runs, and with how many learners, where the user leaves it open.

`bow.train` measures, if the training is long enough. Where nothing is measured, "auto" is a rule:

* learners: 4 on a CPU, 8 on a GPU, but no more than leave at least 25 rounds in an epoch;
* engine on a GPU: `graph` (not measured yet);
* engine on a CPU: `fused` for models without convolutions or recurrent layers and of at most 50,000 parameters that are
  known to train for at least 5,000 rounds, so that compiling (ten to thirty seconds) pays; `graph` for all others that
  are known to train for at least 1,000 rounds, since the native runtime has to be built once on every machine and the
  step to be captured; `eager` otherwise. `benchmarks/results/engines.md` has the measurements: `fused` and `graph` are
  both far ahead for logistic regression, `graph` for everything larger.
"""

from pkgutil import resolve_name

import torch
from torch import nn

from bow.devices import StreamDevice
from bow.engines.loop import Loop, RoundLoop
from bow.engines.outcome import LearningConfig
from bow.errors import SettingError
from bow.replicas import LearnerGroup, num_trainable
from bow.sync import Synchroniser

ENGINES = {
    "eager": "bow.engines.eager.Eager",
    "fused": "bow.engines.fused.Fused",
    "graph": "bow.engines.graph.Graph",
    "streams": "bow.engines.streams.Streams",
}
"""Those of a CPU, imported when they are used."""

STREAM_ENGINES = {
    "graph": "bow.engines.cuda.graph.CudaGraphs",
    "streams": "bow.engines.cuda.streams.CudaStreams",
    "graph+round": "bow.engines.cuda.whole_round.WholeRound",
    "fused": "bow.engines.cuda.fused.CudaFused",
}
"""Those of a device with streams; `eager` runs there too."""

LEARNERS_CPU = 4
LEARNERS_CUDA = 8
MIN_ROUNDS_PER_EPOCH = 25
FUSED_PARAMETERS = 50_000
FUSED_ROUNDS = 5_000
GRAPH_ROUNDS = 1_000


def make_engine(
    name: str, group: LearnerGroup, sync: Synchroniser, settings: LearningConfig, device: StreamDevice | None = None
) -> Loop:
    """Make an engine by its name."""
    if device is not None and name in STREAM_ENGINES:
        from bow.engines.cuda import DeviceRoundLoop

        return DeviceRoundLoop(resolve_name(STREAM_ENGINES[name]), group, sync, settings, device)
    return RoundLoop(resolve_name(ENGINES[name]), group, sync, settings, device)


def check_device(engine: str, streams: bool) -> None:
    """Refuse an engine that does not run on a device."""
    if not streams and engine not in ENGINES:
        raise SettingError(
            'capture="round" is for GPUs, and this training runs on the CPU; leave it out, or use device="cuda"'
        )


def choose_engine(model: nn.Module, rounds: int | None, device: torch.device) -> str:
    """The engine for `engine="auto"`."""
    if device.type == "cuda":
        return "graph"
    unfit = (nn.modules.conv._ConvNd, nn.RNNBase)
    fusible = num_trainable(model) <= FUSED_PARAMETERS and not any(isinstance(m, unfit) for m in model.modules())
    if rounds is not None and rounds >= FUSED_ROUNDS and fusible:
        return "fused"
    if rounds is not None and rounds >= GRAPH_ROUNDS:
        return "graph"
    return "eager"


def choose_learners(place: torch.device | StreamDevice, samples_per_epoch: int | None, batch_size: int | None) -> int:
    """The number of learners for `learners="auto"`."""
    on_cpu = isinstance(place, torch.device) and place.type == "cpu"
    wanted = LEARNERS_CPU if on_cpu else LEARNERS_CUDA
    if samples_per_epoch is None or batch_size is None:
        return wanted
    return max(1, min(wanted, samples_per_epoch // (batch_size * MIN_ROUNDS_PER_EPOCH)))
