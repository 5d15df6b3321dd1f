"""Candidates of a calibration on a device: engines, numbers of threads and of learners."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from bow.devices import available_cores, share_cores
from bow.engines.choice import TINY_PARAMETERS
from bow.engines.offload import OFFLOADING
from bow.replicas import num_trainable
from bow.replicas.layout import memory_order
from bow.runtime.loading import BUILD_S, is_built
from bow.training.replicas_config import ReplicasConfig
from bow.training.trials import CHANNELS_LAST, COMPILED, Trials
from bow.tuner import Candidate, EngineSetting, doubling

# In the order of measurement, those that are most often best first: a short budget ends early.
ENGINES_CPU: tuple[str, ...] = ("graph", "streams", "eager", "fused")
ENGINES_CUDA: tuple[str, ...] = ("graph", "graph+round", "streams", "fused", "eager")

MOST_PER_CORE = 4  # most learners per core: beyond one, they only save overhead of rounds
MOST_CPU, MOST_CUDA = 8, 64  # upper limits of learners to try: on a CPU more if it has many cores
FUSED_COMPILE_S = 12.0
COMPILE_S = 20.0  # approximate time to compile a learning task with `torch.compile`
FUSED_GAIN = 1.2  # expected speed-up by engine `fused` for models of up to `TINY_PARAMETERS`; none for larger ones
# Modules that `vmap` on a CPU runs learner by learner or slower, as `benchmarks/results/engines.md` shows.
UNFIT_FOR_FUSED = (nn.modules.conv._ConvNd, nn.RNNBase)


@dataclass(frozen=True)
class Request:
    """The user's settings, and which of them the tuner is to choose."""

    engine: str  # a name, or `"auto"`
    learners: int | Literal["auto"]  # a number, or `"auto"`
    compile: bool  # whether the learning task is to be compiled
    batch_size: int  # samples of a batch
    most: int  # upper limit of learners given the data, if their number is open
    samples: float | None  # that the training will process; None: unknown
    rounds: int | None  # of the training with the rule's number of learners; None: unknown
    rule: int  # number of learners by the rule of thumb
    replicas: ReplicasConfig  # settings to build the learners

    @property
    def is_open(self) -> bool:
        return self.engine == "auto" or self.learners == "auto"


def lanes(request: Request, trials: Trials) -> list[Candidate]:
    """Return all candidates; captures a learning task to find out whether its compiled code is cached."""
    engine = request.replicas.task.engine
    engines = ENGINES_CPU if request.replicas.on_cpu else ENGINES_CUDA
    if engine.offload and not request.replicas.on_cpu:
        engines = tuple(name for name in engines if name in OFFLOADING)
    if engine.accumulate > 1:
        engines = tuple(name for name in engines if name != "fused")
    if request.engine != "auto":
        engines = (request.engine,)
    counts = {name: _counts(request, name) for name in engines}
    return [each for name in engines if counts[name] for each in _of_engine(name, counts[name], request, trials)]


def has_choice_of_format(replicas: ReplicasConfig) -> bool:
    """Return whether there are convolutions whose memory format the user left open."""
    if replicas.is_several or replicas.task.engine.memory_format is not None:
        return False  # rows of several devices are added up, and must have one order
    layers = [module for module in replicas.model.modules() if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)]
    weights = [weight for layer in layers for weight in layer.parameters(recurse=False) if weight.requires_grad]
    return bool(weights) and all(memory_order(weight) == tuple(range(weight.dim())) for weight in weights)


def _counts(request: Request, engine: str) -> tuple[int, ...]:
    replicas, learners = request.replicas, request.learners
    if learners != "auto":
        return (learners,) if replicas.most_learners(engine, learners) == learners else ()
    if replicas.on_cpu and engine == "eager" and request.engine == "auto":
        return (1,)  # learners run in turn on all threads: more of them would only add averaging
    most = replicas.most_learners(engine, most_tried(request))
    return doubling(most) if most else ()


def most_tried(request: Request) -> int:
    wanted = max(MOST_CPU, MOST_PER_CORE * len(available_cores())) if request.replicas.on_cpu else MOST_CUDA
    return min(wanted, request.most)


def _of_engine(engine: str, counts: tuple[int, ...], request: Request, trials: Trials) -> Iterator[Candidate]:
    on_cpu, model = request.replicas.on_cpu, request.replicas.model
    threads = torch.get_num_threads() if on_cpu else 1
    compiled = Candidate(f"{engine}{COMPILED}", counts=counts, compile_s=COMPILE_S)
    if engine == "fused":
        is_unfit = any(isinstance(module, UNFIT_FOR_FUSED) for module in model.modules())
        if request.engine != "auto" or not on_cpu or not is_unfit:
            gain = FUSED_GAIN if num_trainable(model) <= TINY_PARAMETERS else 1.0
            lane = Candidate(engine, threads, counts, compile_s=FUSED_COMPILE_S, compiles_each=True, expected_gain=gain)
            yield replace(lane, start=request.rule)
    elif engine == "graph" and on_cpu:
        build_s = 0.0 if is_built() else BUILD_S
        if not request.compile:
            yield Candidate(engine, counts=counts, compile_s=build_s)
            if has_choice_of_format(request.replicas):
                yield Candidate(f"{engine}{CHANNELS_LAST}", counts=counts, compile_s=build_s)
            cores = len(available_cores())
            several = tuple(count for count in counts if share_cores(count, cores, threads)[1] > 1)
            if several:
                yield Candidate(engine, threads, several, compile_s=build_s)
        # Capturing would build the runtime: where it is missing, assume that compiling is needed.
        compile_s = build_s + COMPILE_S if build_s else trials.compile_s(EngineSetting(engine, counts[0]))
        if compile_s is not None:
            yield replace(compiled, compile_s=compile_s)
    elif request.compile:
        yield replace(compiled, threads=threads)
    else:
        numbers = {1, threads} if engine == "eager" else {1}
        yield from (Candidate(engine, number, counts) for number in sorted(numbers, reverse=True))
